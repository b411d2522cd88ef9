"""Runs that learn nothing say so and stop; equal runs are equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.e2e.test_training import file, lines, weights  # noqa: F401
from titanrl.components.samplers.torch.sampler import TorchSampler
from titanrl.config import load
from titanrl.errors import TrainingError
from titanrl.registry import catalog
from titanrl.training.run import train

PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import random
import torch
from titanrl import TokenLoss, register


@register("loss", "{name}_loss")
@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    \"\"\"A loss of NaN.\"\"\"

    in_keys: ClassVar = ("advantage",)

    def __call__(self, policy, batch):
        return TokenLoss(torch.where(batch["loss_mask"], policy.logprob * float("nan"), 0), {{}})


@register("reward", "{name}_raises")
@dataclass(frozen=True, slots=True, kw_only=True)
class Raises:
    \"\"\"A reward that is wrong itself.\"\"\"

    in_keys: ClassVar = ()

    def __call__(self, batch):
        raise KeyError("no_such_column")


@register("reward", "{name}_random")
@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    \"\"\"A reward from the generators of numpy, Python and torch.\"\"\"

    in_keys: ClassVar = ()

    def __call__(self, batch):
        values = [np.random.rand() + random.random() for _ in range(len(batch))]
        return torch.tensor(values) + torch.rand(len(values))
"""


@pytest.fixture
def plugin(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Writes a plug-in; returns the override that imports it, and the prefix of its components' names."""
    name = request.node.name.partition("[")[0]
    (tmp_path / f"{name}.py").write_text(PLUGIN.format(name=name))
    yield f"imports=['{tmp_path}/{name}.py']", name
    for kind in ("loss", "reward"):
        for own in [each for each in catalog._classes[kind] if each.startswith(name)]:
            del catalog._classes[kind][own]


@pytest.mark.parametrize(
    "overrides", [["optimizer.lr=1e30"], ["training.max_norm=1e38", "optimizer.lr=1e37"]]
)
def test_run_whose_updates_are_too_large_is_told_and_stopped(file, capsys, overrides):  # noqa: F811
    with pytest.raises(TrainingError, match=r"alert skipped_steps always stops a run|weights are not finite"):
        train(load(file, [*overrides, "loop.steps=12", "evaluation=", "checkpoint.interval=100"]))
    assert "step skipped: gradient not finite" in capsys.readouterr().out


def test_loss_of_nan_stops_the_run_after_five_skipped_steps(file, plugin, tmp_path, capsys):  # noqa: F811
    imports, name = plugin
    experiment = load(
        file,
        [imports, f"algorithm.loss={{name='{name}_loss'}}", "algorithm.kl=", "reference=", "loop.steps=9"],
    )
    with pytest.raises(TrainingError, match=r"stopped in step 5: alert skipped_steps always stops a run"):
        train(experiment)
    run = tmp_path / "runs" / "tiny"
    assert [line.get("update/nonfinite_gradients") for line in lines(run)[1:]] == [1.0] * 5
    assert {"nonfinite_loss", "skipped_steps"} <= {row["name"] for row in lines(run, "alerts.jsonl")}
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert len(shown) == 5
    assert all("step skipped: gradient not finite" in line and "grad " not in line for line in shown)


def test_reward_that_fails_on_the_whole_first_batch_stops_the_run(file, plugin):  # noqa: F811
    imports, name = plugin
    experiment = load(file, [imports, f"reward=[{{name='{name}_raises'}}]", "evaluation="])
    with pytest.raises(TrainingError, match=r"failed on all 16 responses of the first batch.*no_such_column"):
        train(experiment)


def test_validation_is_shown_where_it_was_made(file, capsys):  # noqa: F811
    train(load(file))
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [" eval " in line for line in shown] == [False, True, False, True]
    assert not any(" clip " in line for line in shown), "old and new policy are equal in such a step"
    assert " left" not in shown[0]
    assert all(" left" in line for line in shown[1:])


def test_two_runs_are_equal_bit_by_bit_and_so_is_a_resumed_one(file, plugin, tmp_path):  # noqa: F811
    """The reward draws from the generators of torch, numpy and Python."""
    imports, name = plugin
    own = [imports, f"reward=[{{name='{name}_random'}}]"]

    def recorded(run: Path) -> list[dict[str, float]]:
        rows = lines(run)
        return [{k: v for k, v in row.items() if not k.startswith("time") and k != "marker"} for row in rows]

    runs = [train(load(file, [*own, f"run.name=equal{number}"])) for number in range(2)]
    assert recorded(runs[0]) == recorded(runs[1])
    first, second = (weights(run, tmp_path / f"out{number}") for number, run in enumerate(runs))
    assert all(torch.equal(second[key], value) for key, value in first.items())
    short = load(file, [*own, "run.name=equal2", "loop.steps=2"])
    run = train(short)
    assert train(load(file, [*own, "run.name=equal2"]), resume=True) == run
    by_step = {row["step"]: row for row in recorded(run)}
    assert by_step[4]["reward/mean"] == recorded(runs[0])[4]["reward/mean"]


def test_log_probs_of_trainer_and_sampler_are_compared_token_by_token(file, monkeypatch):  # noqa: F811
    own = ["loop.max_logprob_diff=1e-4", "loop.steps=2", "evaluation="]
    train(load(file, own))
    sample = TorchSampler.sample

    def wrong(self, *arguments, **options):
        completions = sample(self, *arguments, **options)
        first = completions[1]
        return [
            completions[0],
            first._replace(logprobs=[first.logprobs[0] - 0.5, *first.logprobs[1:]]),
            *completions[2:],
        ]

    monkeypatch.setattr(TorchSampler, "sample", wrong)
    with pytest.raises(
        TrainingError, match=r"disagree by 0\.5 nats in step 1.*label position \d+ of row 1\."
    ):
        train(load(file, [*own, "run.name=wrong"]))


def test_sampler_that_returns_too_few_responses_ends_the_run(file, monkeypatch):  # noqa: F811
    sample = TorchSampler.sample
    monkeypatch.setattr(TorchSampler, "sample", lambda self, *a, **o: sample(self, *a, **o)[:-1])
    with pytest.raises(TrainingError, match="the sampler returned 15 responses to 16 requests"):
        train(load(file, ["evaluation="]))


def test_log_probs_above_zero_end_the_run(file, monkeypatch):  # noqa: F811
    sample = TorchSampler.sample

    def positive(self, *arguments, **options):
        return [
            each._replace(logprobs=[1.5] * len(each.logprobs)) for each in sample(self, *arguments, **options)
        ]

    monkeypatch.setattr(TorchSampler, "sample", positive)
    with pytest.raises(
        ValueError, match=r"sampler_logprob.*is 1\.5 in row 0, but a log-prob is never positive"
    ):
        train(load(file, ["evaluation="]))
