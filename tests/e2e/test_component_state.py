"""Components with state: saved for every kind, restored on resume, called once after each optimizer step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.test_training import FILE, ROOT, lines, weights
from titanrl.config import load
from titanrl.models import tiny
from titanrl.training import online
from titanrl.training.run import train

LAB = '''
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from titanrl import CorrectionResult, TokenLoss, register

STEPS = []


class Counted:
    """State that every component of this file has: how often it was called, and the optimizer steps."""

    def state_dict(self):
        return {"calls": self.calls, "steps": self.steps}

    def load_state_dict(self, state_dict):
        self.calls, self.steps = state_dict["calls"], state_dict["steps"]


@register("loss", "halving")
@dataclass(slots=True, kw_only=True)
class Halving:
    """Reinforce times a coefficient that each optimizer step halves; the state is a tensor."""

    start: float = 1.0
    coefficient: torch.Tensor = field(init=False)
    in_keys: ClassVar = ("advantage",)

    def __post_init__(self):
        self.coefficient = torch.tensor(self.start)

    def __call__(self, policy, batch):
        mask = batch["loss_mask"]
        advantage = torch.where(mask, batch["advantage"], 0)
        loss = -self.coefficient * advantage * torch.where(mask, policy.logprob, 0)
        return TokenLoss(loss, {"coefficient": self.coefficient.expand_as(loss)})

    def on_step_end(self, metrics):
        STEPS.append(metrics)
        self.coefficient = self.coefficient / 2

    def state_dict(self):
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state_dict):
        self.coefficient = state_dict["coefficient"].clone()


@register("correction", "counting")
@dataclass(slots=True, kw_only=True)
class CountingCorrection(Counted):
    """Weights of 1 plus a hundredth of its earlier calls."""

    calls: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    in_keys: ClassVar = ("loss_mask",)

    def __call__(self, batch):
        mask = batch["loss_mask"]
        self.calls += 1
        return CorrectionResult(mask * (1 + self.calls / 100), mask, {})

    def on_step_end(self, metrics):
        self.steps += 1


@register("filter", "counting")
@dataclass(slots=True, kw_only=True)
class CountingFilter(Counted):
    """Keeps every group."""

    calls: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    in_keys: ClassVar = ("group_id",)

    def __call__(self, batch):
        self.calls += 1
        return torch.ones(len(batch), dtype=torch.bool)


@register("aggregation", "counting")
@dataclass(slots=True, kw_only=True)
class CountingAggregation(Counted):
    """The token mean times 1 plus a hundredth of its earlier calls."""

    calls: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)

    def __call__(self, loss_mask, group_id):
        self.calls += 1
        return loss_mask * (1 + self.calls / 100) / loss_mask.sum()


@register("reward", "counting")
@dataclass(slots=True, kw_only=True)
class CountingReward(Counted):
    """Rewards that depend on how often it was called."""

    calls: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    in_keys: ClassVar = (("text", "response"),)

    def __call__(self, batch):
        self.calls += 1
        return torch.tensor([float((len(text) + self.calls) % 3) for text in batch["text", "response"]])
'''

TABLES = """
[algorithm.loss]
name = "halving"
[algorithm.aggregation]
name = "counting"
[[algorithm.correction]]
name = "counting"
[[algorithm.filter]]
name = "counting"
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of components; a process imports a module of one name once."""
    path = tmp_path_factory.mktemp("lab") / "state_lab.py"
    path.write_text(LAB)
    return path


@pytest.fixture
def file(tmp_path: Path, lab: Path) -> Path:
    tiny.create(tmp_path / "model", scale=0.3)
    (tmp_path / "prompts.jsonl").write_text("\n".join(f'{{"prompt": "say {n}"}}' for n in range(7)))
    text = FILE.format(root=ROOT, folder=tmp_path).replace('name = "repetition"\nn = 1', 'name = "counting"')
    path = tmp_path / "experiment.toml"
    path.write_text(f'imports = ["{lab}"]\n{text}{TABLES}')
    return path


def coefficients(run: Path) -> list[float]:
    return [line["loss/coefficient"] for line in lines(run) if "loss/coefficient" in line]


def test_resumed_components_continue_from_their_state(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = train(load(file, ["run.name=complete", "evaluation="]))
    assert coefficients(complete) == [1.0, 0.5, 0.25, 0.125]
    experiment = load(file, ["run.name=stopped", "evaluation="])
    original = online.train_step

    def interrupted(session: Any, step: int, timer: Any) -> Any:
        if step == 2:
            raise KeyboardInterrupt
        return original(session, step, timer)

    monkeypatch.setattr(online, "train_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(experiment)
    monkeypatch.setattr(online, "train_step", original)
    resumed = train(load(file, ["run.name=stopped", "evaluation="]), resume=True)
    assert coefficients(resumed) == coefficients(complete)
    expected, got = weights(complete, file.parent / "a"), weights(resumed, file.parent / "b")
    assert all(torch.equal(got[name], value) for name, value in expected.items())


@pytest.mark.parametrize("max_tokens", [40, 2000])
def test_on_step_end_is_called_once_per_optimizer_step(file: Path, max_tokens: int) -> None:
    """Whatever the number of micro-batches: two epochs of two minibatches in each of two steps."""
    overrides = ["loop.steps=2", "loop.minibatches=2", "loop.epochs=2", "evaluation="]
    overrides += [f"training.max_tokens_per_microbatch={max_tokens}", f"run.name=tokens{max_tokens}"]
    experiment = load(file, overrides)
    steps: list[dict[str, float]] = sys.modules["state_lab"].STEPS
    steps.clear()
    train(experiment)
    assert len(steps) == 8
    assert [metrics["loss/coefficient"] for metrics in steps] == [0.5**n for n in range(8)]


def test_checkpoint_of_other_components_is_refused(file: Path) -> None:
    train(load(file, ["loop.steps=1", "evaluation="]))
    changed = load(file, ["loop.steps=2", "evaluation=", "algorithm.loss.name=reinforce"])
    with pytest.raises(ValueError, match=r"has algorithm\.loss in addition; resume with the components"):
        train(changed, resume=True, accept=["algorithm.loss"])
