"""Scores the responses of ranks that share a model by a random reward.

Usage: rewards_worker.py FOLDER, which holds cases.json ({mesh: overrides}), grpo.toml, and gets rank-<r>.pt.
"""

from __future__ import annotations

import json
import os
import random
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

import titanrl.engine
from titanrl import register
from titanrl.config import load
from titanrl.data.prompts import training_prompts
from titanrl.errors import TrainingError
from titanrl.rollout.generator import generate_and_score
from titanrl.training.session import open_session
from titanrl.training.stages import sample, score

CALLS: list[int] = []
"""Number of rows of each call of this rank's reward."""


@register("reward", "moody")
@dataclass(frozen=True, slots=True, kw_only=True)
class Moody:
    """Returns random scores that no seed repeats, and finally fails."""

    patience: int = 1_000
    """Number of calls after which it raises."""

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        return torch.tensor(self.scores(batch))

    def scores(self, batch: TensorDict) -> list[float]:
        CALLS.append(len(batch))
        if len(CALLS) > self.patience:
            raise TrainingError("the judge is gone")
        return [random.SystemRandom().random() for _ in range(len(batch))]


def run(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Returns this rank's scores of three batches of two prompts with two responses each, of which the last
    fails, and the number of calls of its own reward."""
    CALLS.clear()
    with closing(
        open_session(load(folder / "grpo.toml", overrides), folder, training_prompts, resume=False)
    ) as session:
        session.sampler.load(session.engine.weights(), version=0)
        rows = session.loader.next_batch(2, 2)
        batch, _, _ = sample(session, rows, 0)
        scored, _ = score(session, batch, on_policy=True)
        rollouts = generate_and_score(session, rows, step=0, seed=0)
        try:
            score(session, batch, on_policy=True)
        except TrainingError as error:
            failure = str(error)
        return {
            "rewards": scored["reward"],
            "scored": torch.tensor([response.reward for response in rollouts.responses]),
            "groups": scored["group_id"],
            "failure": failure,
            "calls": list(CALLS),
        }


if __name__ == "__main__":
    titanrl.engine.set_threads = lambda: torch.set_num_threads(1) or 1
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    actual = {mesh: run(folder, overrides) for mesh, overrides in cases.items()}
    torch.save(actual, folder / f"rank-{int(os.environ['RANK'])}.pt")
    torch.distributed.destroy_process_group()
