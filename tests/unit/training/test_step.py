"""The optimizer steps of a batch: which are made, and which are left out once the policy is too far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.algorithm.test_compute_advantages import algorithm
from tests.unit.engine.one_weight import OneWeight, rows_of
from tests.unit.training.sessions import OneProcess, session_of
from titanrl.algorithm.metrics import means
from titanrl.errors import ConfigError
from titanrl.training.step import optimize


class Scripted:
    """A policy that reports these distances from the old policy, one per optimizer step."""

    def __init__(self, distances: Sequence[float | None]) -> None:
        self.distances, self.updates, self.rates = list(distances), 0, 0

    @property
    def schedule(self) -> Scripted:
        return self

    def step(self) -> None:
        self.rates += 1

    def update(self, rows: Any, objective: Any, coefficients: Any) -> dict[str, tuple[float, float]]:
        distance = self.distances[self.updates]
        self.updates, self.rates = self.updates + 1, self.rates + 1
        # Sums over three tokens.
        return {} if distance is None else {"loss/approx_kl": (3 * distance, 3.0)}


def outcome(
    distances: Sequence[float | None], limit: float | None
) -> tuple[Scripted, OneWeight, dict[str, float]]:
    """Returns policy, critic and metrics after a batch of two epochs of two minibatches."""
    policy, critic = Scripted(distances), OneWeight(head="value")
    chosen = algorithm(loss={"name": "ppo_clip"}, advantage={"name": "grpo"})
    engine = OneProcess(policy=policy, critic=critic, update=policy.update)
    loop_keys = {"minibatches": 2, "epochs": 2, "target_kl": limit}
    session = session_of(engine, algorithm=chosen, loop_keys=loop_keys)
    rows = rows_of([2, 3])
    rows["value"], rows["returns"] = rows["labels"].float(), rows["labels"].float()
    return policy, critic, means(optimize(session, rows, step=0, on_policy=True))


@pytest.mark.parametrize(
    ("distances", "made"),
    [((0.0, 0.01, 0.02, 0.03), 4), ((0.0, 0.03, 0.0, 0.0), 2), ((0.021, 0.0, 0.0, 0.0), 1), ((0.02,) * 4, 4)],
)
def test_target_kl_stops_the_remaining_updates_of_a_batch(distances, made):
    policy, critic, metrics = outcome(distances, limit=0.02)
    assert policy.updates == made
    assert metrics["update/early_stopped"] == 4 - made
    # The critic learns on, and the learning rate is where it would be.
    assert critic.updates == 4
    assert policy.rates == 4


def test_no_update_is_skipped_without_target_kl():
    policy, _, metrics = outcome((9.0,) * 4, limit=None)
    assert policy.updates == 4
    assert "update/early_stopped" not in metrics


def test_target_kl_refuses_a_loss_without_approx_kl():
    with pytest.raises(ConfigError, match="target_kl needs a loss that reports approx_kl"):
        outcome((None,) * 4, limit=0.02)
