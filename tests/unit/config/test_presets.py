"""Presets of the package: their names, base files by name, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.conftest import EXPERIMENT, Write
from titanrl.config import dumps, load, presets
from titanrl.config.presets import locate, preset_names, summary
from titanrl.errors import ConfigError

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
GRPO = """
[model]
path = "models/none"
[prompts]
name = "jsonl"
path = "prompts.jsonl"
[sampler]
name = "torch"
max_response_tokens = 8
[[reward]]
name = "repetition"
[loop]
steps = 1
prompts_per_step = 4
"""


def test_preset_names_are_the_examples_the_algorithms_and_the_other_frameworks() -> None:
    names = preset_names()
    folders = ("", "algorithms", "compat")
    paths = [path for folder in folders for path in (EXPERIMENTS / folder).glob("*.toml")]
    assert sorted(names) == sorted(path.relative_to(EXPERIMENTS).as_posix() for path in paths)
    assert (
        names.index("quickstart.toml")
        < names.index("algorithms/grpo.toml")
        < names.index("compat/verl_grpo.toml")
    )


@pytest.mark.parametrize("name", preset_names())
def test_preset_has_a_summary_of_one_line(name: str) -> None:
    assert 10 < len(summary(name)) < 300
    assert "\n" not in summary(name)


def test_summary_is_the_first_sentence_of_the_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.toml").write_text("# Dr. GRPO: plain\n# sums. More.\n\n# Other.\n[run]\n")
    monkeypatch.setattr(presets, "FOLDER", tmp_path)
    assert summary("a.toml") == "Dr. GRPO: plain sums."


def test_base_by_preset_name_is_the_base_file_of_that_path(write: Write) -> None:
    by_name = load(write(f'base = "titanrl:algorithms/dapo.toml"\n{GRPO}'))
    by_path = load(write(f'base = "{EXPERIMENTS}/algorithms/dapo.toml"\n{GRPO}'))
    assert dumps(by_name) == dumps(by_path)
    assert by_name.algorithm.loss.clip_high == 0.28  # type: ignore[attr-defined]


def test_preset_whose_base_is_relative_is_loaded_by_name(write: Write) -> None:
    bases = '["titanrl:compat/trl_grpo.toml"]'
    experiment = load(write(f"base = {bases}\n{GRPO}"))
    assert experiment.algorithm.advantage.eps == 1e-4  # type: ignore[attr-defined]


def test_load_takes_a_preset_name() -> None:
    assert load("titanrl:tiny_grpo.toml").run.name == "tiny_grpo"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("titanrl:algorithms/gpro.toml", "'titanrl:algorithms/grpo.toml'"),
        ("titanrl:grpo.toml", "'titanrl:algorithms/grpo.toml'"),
        ("titanrl:verl_grpo.toml", "'titanrl:compat/verl_grpo.toml'"),
        ("titanrl:../pyproject.toml", ""),
    ],
)
def test_unknown_preset_is_an_error_with_the_nearest_name(write: Write, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(f'base = "{name}"\n{EXPERIMENT}'))
    text = str(caught.value)
    assert f"no such preset: {name}; " in text
    assert f"did you mean {message}" in text
    assert "`titanrl presets` lists them" in text


def test_path_is_relative_to_the_folder_of_the_file() -> None:
    assert locate("base.toml", "a/b") == Path("a/b/base.toml")
    assert locate(Path("/x.toml"), "a") == Path("/x.toml")
