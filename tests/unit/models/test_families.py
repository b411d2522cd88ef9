"""One record per model family: found by folder, brought by plug-ins, named nowhere else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from titanrl.config.engine_tables import Parallelism
from titanrl.errors import ConfigError
from titanrl.models import family as registry
from titanrl.models.families import qwen3
from titanrl.models.family import ModelFamily, families, family_of, register_family
from titanrl.models.mesh_checks import model_problems
from titanrl.models.read_config import read_config
from titanrl.models.tiny import create

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    families()
    monkeypatch.setattr(registry, "_families", dict(registry._families))


def with_model_type(folder: Path, model_type: str) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": model_type}))
    return folder


def test_families_are_found_by_their_folder() -> None:
    files = sorted(path.stem for path in (ROOT / "titanrl/models/families").glob("[!_]*.py"))
    assert [family.name for family in families()] == files


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_family_reads_the_tiny_model_that_it_makes(tmp_path: Path, family: ModelFamily) -> None:
    config = read_config(create(tmp_path, model_type=family.model_types[0], layers=3))
    assert family_of(config.model_type) is family
    assert (config.num_layers, config.dim, config.num_heads) == (3, 32, 4)
    assert (config.experts is not None) == family.has_experts


def test_unknown_model_type_is_refused_with_the_nearest_and_the_list() -> None:
    message = r"model_type 'qwen_3' is not supported; did you mean 'qwen3'\? supported: deepseek_v3, llama, "
    with pytest.raises(ConfigError, match=message):
        family_of("qwen_3")


def test_model_type_of_another_family_is_refused(own_registry: None) -> None:
    with pytest.raises(ValueError, match="model_type 'qwen3' of family 'mine' is already registered by"):
        register_family(replace(qwen3.FAMILY, name="mine"))


def test_dtype_that_the_family_does_not_compute_in_is_refused(own_registry: None, tmp_path: Path) -> None:
    register_family(replace(qwen3.FAMILY, name="mine", model_types=("mine",), dtypes=("float32",)))
    config = read_config(with_model_type(create(tmp_path, model_type="qwen3"), "mine"))
    assert model_problems(config, Parallelism(), "m", "float32") == []
    (problem,) = model_problems(config, Parallelism(), "m", "bfloat16")
    assert (problem.where, problem.key) == ("training", "mixed_precision_param")
    assert problem.message == "must be 'float32' for m, a model of family mine, got 'bfloat16'."


def test_no_other_file_names_a_family() -> None:
    names = {name for family in families() for name in (*family.model_types, family.class_name.lower())}
    pattern = re.compile("|".join(sorted(names | {"deepseek", "qwen", "model_type ==", r"model_type in \("})))
    folder, linked = ROOT / "titanrl/models/families", ROOT / "titanrl/components"
    # Formats of tool calls have no other names than those of the families whose models write them.
    formats = ROOT / "titanrl/runtime/tools/formats.py"
    actual = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "titanrl").rglob("*.py"))
        if folder not in path.parents and linked not in path.parents and path != formats
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line.lower())
    ]
    assert actual == []
