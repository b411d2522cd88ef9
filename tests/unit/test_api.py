"""The public names of the package: documented, typed, and cheap to import."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import titanrl
from titanrl.config import load
from titanrl.config.experiment import Experiment
from titanrl.eval.evaluate import EvalResult

PAGE = (Path(__file__).parents[2] / "docs/api.md").read_text()


def test_page_documents_all_public_names_and_no_others() -> None:
    documented = set(re.findall(r"^(?:### |\| )`titanrl\.(\w+)", PAGE, flags=re.MULTILINE))
    assert documented == set(titanrl.__all__)


@pytest.mark.parametrize("name", ["load", "train", "evaluate", "register", "names", "build"])
def test_heading_of_the_page_is_the_signature(name: str) -> None:
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(getattr(titanrl, name)).parameters.values()
    ]
    assert f"### `titanrl.{name}{inspect.Signature(parameters)}`" in PAGE


def test_lazy_names_are_what_their_modules_define() -> None:
    assert titanrl.load is load
    assert titanrl.Experiment is Experiment
    assert titanrl.EvalResult is EvalResult
    assert set(titanrl.__all__) <= set(dir(titanrl))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'titanrl' has no attribute 'lod'"):
        titanrl.lod  # noqa: B018


LIGHT = """
import sys
import titanrl
heavy = {"torch", "numpy", "tensordict", "titanrl.config", "titanrl.training", "titanrl.eval"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
titanrl.load
assert "torch" not in sys.modules
"""


def test_importing_the_package_loads_no_framework_and_no_settings() -> None:
    result = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("function", [titanrl.train, titanrl.evaluate])
def test_experiment_that_cannot_run_here_is_refused_before_it_starts(function) -> None:
    experiment = titanrl.load("titanrl:tiny_grpo.toml", ["model.path=models/none"])
    with pytest.raises(titanrl.ConfigError, match=r"\[model\] path must be a model folder"):
        function(experiment)
