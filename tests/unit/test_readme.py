"""The README's files, commands and messages work as printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from typer.testing import CliRunner

import titanrl
from tests.laws import test_loss_compiles as compile_laws
from tests.laws import test_loss_laws as loss_laws
from tests.unit.config.conftest import registry_as_before
from titanrl.ablation.plan import plan
from titanrl.cli.app import app
from titanrl.config import load
from titanrl.protocols import PolicyOutputs

__all__ = ["registry_as_before"]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LOSS = {"name": "squared_advantage"}

LAWS = [
    law for law in vars(loss_laws).values() if loss_laws.every_loss.mark in getattr(law, "pytestmark", [])
]
"""The property tests that run over every registered loss."""


def blocks(language: str) -> list[str]:
    pairs = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    return [text for name, text in pairs if name == language]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the README's files and, beside them, experiments/."""
    tmp_path = tmp_path_factory.mktemp("readme")
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    for block in [*blocks("toml"), *blocks("python")]:
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    return tmp_path


def test_experiment_files_of_the_readme_load(folder):
    experiment = load(folder / "my_grpo.toml")
    assert experiment.algorithm.loss.clip_high == 0.28
    assert load(folder / "my_tools.toml").environment.max_turns == 4
    assert type(load(folder / "my_experiment.toml").algorithm.loss).__name__ == "SquaredAdvantage"


def test_ablation_of_the_readme_has_ten_runs(folder):
    study = plan(folder / "my_ablation.toml")
    assert len(study.runs) == 10
    assert {run.experiment.algorithm.loss.clip_high for run in study.runs} == {0.2, 0.28}


def test_links_of_the_readme_exist():
    targets = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert len(targets) > 15
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_loss_of_the_readme_computes_its_formula(folder):
    load(folder / "my_experiment.toml")
    mask = torch.tensor([[True, True, False]])
    batch = TensorDict({"advantage": torch.tensor([[2.0, -3.0, 1e9]]), "loss_mask": mask}, batch_size=[1])
    policy = PolicyOutputs(logprob=torch.tensor([[-0.5, -1.0, float("nan")]]))
    loss = titanrl.build("loss", LOSS)(policy, batch).loss
    assert loss.tolist() == [[2.0, -9.0, 0.0]]  # -2*2*-.5, --3*3*-1, masked


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_loss_of_the_readme_passes_the_property_tests_of_every_loss(folder, law: Callable[..., None]):
    load(folder / "my_experiment.toml")
    law(table=LOSS)


@pytest.mark.slow
def test_loss_of_the_readme_compiles_to_one_graph_for_all_lengths(folder):
    load(folder / "my_experiment.toml")
    compile_laws.test_loss_is_one_graph_for_all_lengths(LOSS)


def test_property_tests_include_masked_garbage():
    assert any("masked" in law.__name__ for law in LAWS)
    assert len(LAWS) >= 10


def test_error_message_of_the_readme_is_the_real_one(folder):
    text = (folder / "my_grpo.toml").read_text().replace("clip_high", "clip_hihg")
    (folder / "slip.toml").write_text(text)
    with pytest.raises(titanrl.ConfigError) as caught:
        load(folder / "slip.toml")
    message = next(block for block in blocks("") if "mistake" in block)
    for line in message.strip().splitlines()[1:]:
        assert line.strip().removesuffix(" ...") in str(caught.value)


@pytest.mark.slow
def test_commands_and_options_of_the_readme_exist():
    commands = [
        line for block in blocks("bash") for line in block.splitlines() if line.startswith("titanrl ")
    ]
    commands += re.findall(r"`(titanrl [^`]+)`", README)
    assert len(commands) >= 6
    for line in commands:
        words = line.partition("#")[0].split()
        page = CliRunner().invoke(app, [words[1], "--help"], env={"COLUMNS": "200"}).stdout
        assert "Usage" in page, line
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert option in page, (line, option)


def test_experiment_files_named_by_commands_exist():
    files = re.findall(r"titanrl \w+ (experiments/\S+\.toml)", README)
    assert len(files) >= 8
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_environment_is_activated_before_the_first_command_block():
    bash = "\n".join(blocks("bash"))
    assert bash.index("source .venv/bin/activate") < bash.index("titanrl ")


def test_make_targets_of_the_readme_exist():
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("bash")), flags=re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets == ["train", "test"]
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_front_page_shows_the_component_of_the_readme():
    (component,) = blocks("python")
    assert component in (ROOT / "docs" / "index.md").read_text()
