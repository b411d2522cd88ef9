"""docs/write-a-component.md, done to the letter in a folder outside the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import titanrl
from tests.unit.config.conftest import registry_as_before
from titanrl.algorithm.objective import Objective
from titanrl.config import load

__all__ = ["registry_as_before"]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-a-component.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
MISTAKES = dict(re.findall(r"^\| (.*?)(?:: `.*?`)? \| `(.*)` \|$", PAGE, flags=re.MULTILINE))
PACKAGED = "site"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file of the page."""
    folder = tmp_path_factory.mktemp("lab")
    for language, text in BLOCKS:
        if language in ("python", "toml"):
            (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def no_other_my_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's example has a file of the same name."""
    monkeypatch.delitem(sys.modules, "my_losses", raising=False)


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a line of the page with this Python; what pip installs goes into a folder of the lab."""
    path = os.pathsep.join([str(folder / PACKAGED), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "TITANRL": str(ROOT), "COLUMNS": "80"}
    environment.pop("PYTEST_ADDOPTS", None)
    python = sys.executable
    for program, words in {"titanrl": "-m titanrl", "pip": "-m pip", "python": ""}.items():
        command = re.sub(rf"^{program} ", f"{python} {words} ", command)
    command = command.replace(
        "-m pip install", f"-m pip install --no-deps --no-build-isolation --target {PACKAGED}"
    )
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, text=True, capture_output=True
    )


def as_pattern(shown: str) -> str:
    """Returns shown output as a pattern: any number for a number, and ``...`` for any lines."""
    lines = []
    for line in shown.splitlines():
        numbers = r"[-+]?[\d.:]+".join(re.escape(part) for part in re.split(r"[-+]?[\d.:]*\d", line))
        lines.append(r"(?:.*\n)*?" if line == "..." else re.sub(r"(\\ )+", r"\\s+", numbers) + r"\s*\n")
    return "".join(lines)


@pytest.mark.slow
def test_commands_print_what_the_page_shows(lab: Path) -> None:
    shown = "".join(text for language, text in BLOCKS if language == "console")
    commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", shown, flags=re.MULTILINE)
    assert len(commands) >= 12
    for command, output in commands:
        result = run(command, lab)
        assert result.returncode == 0, f"$ {command}\n{result.stdout}{result.stderr}"
        assert re.fullmatch(as_pattern(output), result.stdout), f"$ {command}\n{result.stdout}\n{output}"


FAULTY = """
import torch
from my_losses import AsymmetricReinforce, TokenLoss, dataclass, register

@register("loss", "times_mask")
@dataclass(frozen=True, slots=True, kw_only=True)
class TimesMask(AsymmetricReinforce):
    def __call__(self, policy, batch):
        return TokenLoss(-batch["advantage"] * policy.logprob * batch["loss_mask"], {})

@register("loss", "says_nothing")
@dataclass(frozen=True, slots=True, kw_only=True)
class SaysNothing(AsymmetricReinforce):
    in_keys = ()
"""


@pytest.mark.slow
def test_laws_pass_the_components_of_the_page_and_fail_the_faults_it_names(lab: Path) -> None:
    (lab / "faulty_losses.py").write_text(FAULTY)
    names = re.findall(r'@register\("\w+", "(\w+)"\)', (lab / "my_components.py").read_text())
    assert len(names) == 6
    tests = "$TITANRL/tests/laws $TITANRL/tests/unit/rewards/test_rewards.py"
    chosen = " or ".join([*names, "times_mask", "says_nothing"])
    result = run(f"python -m pytest -q -p my_components -p faulty_losses {tests} -k '{chosen}'", lab)
    failed = set(re.findall(r"^FAILED \S*::(\w+)\[(\w+)", result.stdout, flags=re.MULTILINE))
    assert ("test_loss_ignores_masked_places", "times_mask") in failed, result.stdout
    assert ("test_loss_reads_its_keys_only_and_writes_nothing", "says_nothing") in failed
    assert {name for _, name in failed} == {"times_mask", "says_nothing"}, result.stdout


EDITS = {
    "a key that the component does not have": ("my_experiment.toml", "negative = 0.25", "negate = 0.1"),
    "a value out of range": ("my_experiment.toml", "negative = 0.25", "negative = -1"),
    "a value of the wrong type": ("my_experiment.toml", "negative = 0.25", 'negative = "half"'),
    "`imports` is missing": ("my_experiment.toml", 'imports = ["my_losses.py"]\n', ""),
    "a misspelled file name in `imports`": ("my_experiment.toml", "my_losses.py", "my_loss.py"),
    '`in_keys = ("advantages",)`': ("my_losses.py", '("advantage",)', '("advantages",)'),
    "a batch key whose role is missing": ("my_losses.py", '("advantage",)', '("ref_logprob",)'),
    "`@dataclass` is missing": ("my_losses.py", "@dataclass(frozen=True, slots=True, kw_only=True)\n", ""),
    "a name that is taken": ("my_losses.py", '"asymmetric_reinforce"', '"reinforce"'),
}
MEAN = "a mean instead of a loss per token"


def test_every_mistake_of_the_page_is_made_here() -> None:
    assert set(MISTAKES) - {"mistake"} == {*EDITS, MEAN}


@pytest.mark.parametrize("mistake", EDITS)
def test_mistakes_say_what_the_page_says(lab: Path, tmp_path: Path, mistake: str) -> None:
    name, before, after = EDITS[mistake]
    for file in ("my_losses.py", "my_experiment.toml"):
        text = (lab / file).read_text()
        if file == name:
            assert before in text
            text = text.replace(before, after)
        (tmp_path / file).write_text(text)
    with pytest.raises(titanrl.ConfigError) as caught:
        load(tmp_path / "my_experiment.toml")
    assert MISTAKES[mistake].removesuffix("`") in str(caught.value)


def test_a_mean_is_refused_with_the_words_of_the_page(lab: Path, tmp_path: Path) -> None:
    text = (lab / "my_losses.py").read_text()
    changed = re.sub(r"return TokenLoss\((.*?), \{", r"return TokenLoss((\1).mean(), {", text)
    assert changed != text
    (tmp_path / "my_losses.py").write_text(changed)
    (tmp_path / "my_experiment.toml").write_text((lab / "my_experiment.toml").read_text())
    objective = Objective(loss=load(tmp_path / "my_experiment.toml").algorithm.loss)
    ones = torch.ones(1, 2)
    batch = {"loss_mask": ones.bool(), "loss_weight": ones, "advantage": ones}
    with pytest.raises(TypeError) as caught:
        objective(titanrl.PolicyOutputs(logprob=-ones), batch, torch.zeros(2))
    assert str(caught.value) == MISTAKES[MEAN]
