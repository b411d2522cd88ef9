"""What the README shows works as it is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from typer.testing import CliRunner

import titanrl
from tests.unit.config.conftest import registry_as_before
from titanrl.ablation.plan import plan
from titanrl.cli.app import app
from titanrl.config import load
from titanrl.protocols import PolicyOutputs

__all__ = ["registry_as_before"]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's files, written where a reader would: experiments/ beside them."""
    tmp_path = tmp_path_factory.mktemp("readme")
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    for block in [*blocks("toml"), *blocks("python")]:
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    return tmp_path


def test_files_of_the_page_are_right(folder):
    experiment = load(folder / "my_grpo.toml")
    assert experiment.algorithm.loss.clip_high == 0.28
    assert type(load(folder / "my_experiment.toml").algorithm.loss).__name__ == "SquaredAdvantage"


def test_ablation_of_the_page_is_ten_runs(folder):
    study = plan(folder / "my_ablation.toml")
    assert len(study.runs) == 10
    assert {run.experiment.algorithm.loss.clip_high for run in study.runs} == {0.2, 0.28}


def test_links_of_the_page_lead_somewhere():
    places = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert len(places) > 15
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_loss_of_the_page_is_the_formula_it_states(folder):
    load(folder / "my_experiment.toml")
    loss = titanrl.build("loss", {"name": "squared_advantage"})
    batch = TensorDict({"advantage": torch.tensor([[2.0, -3.0]])}, batch_size=[1])
    policy = PolicyOutputs(logprob=torch.tensor([[-0.5, -1.0]]))
    assert loss(policy, batch).loss.tolist() == [[2.0, -9.0]]  # -2*2*-.5, --3*3*-1


def test_error_of_the_page_is_the_error_that_comes(folder):
    text = (folder / "my_grpo.toml").read_text().replace("clip_high", "clip_hihg")
    (folder / "slip.toml").write_text(text)
    with pytest.raises(titanrl.ConfigError) as caught:
        load(folder / "slip.toml")
    shown = next(block for block in blocks("") if "mistake" in block)
    for line in shown.strip().splitlines()[1:]:
        assert line.strip().removesuffix(" ...") in str(caught.value)


def test_commands_and_options_of_the_page_exist():
    commands = [
        line for block in blocks("bash") for line in block.splitlines() if line.startswith("titanrl ")
    ]
    assert len(commands) >= 6
    for line in commands:
        words = line.partition("#")[0].split()
        page = CliRunner().invoke(app, [words[1], "--help"], env={"COLUMNS": "200"}).stdout
        assert "Usage" in page, line
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert option in page, (line, option)


def test_make_targets_of_the_page_exist():
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("bash")), flags=re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets == ["train", "test"]
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)
