"""Golden rewards: values and refusals, from the main thread and from another."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import titanrl
from tests.golden.cases import assert_close, assert_refused, batch, ids, load, table, tensor

CASES = load("reward")
VALUES = [case for case in CASES if "reward" in case["expect"]]
ERRORS = [case for case in CASES if "error" in case["expect"]]


@pytest.mark.parametrize("case", VALUES, ids=ids(VALUES))
@pytest.mark.parametrize("thread", ["main", "other"])
def test_reward_gives_the_golden_values(case: dict[str, Any], thread: str) -> None:
    """Rewards work outside the main thread, where signals do not (verl #5635)."""
    found: list[torch.Tensor] = []

    def score() -> None:
        found.append(titanrl.build("reward", table(case))(batch(case)))

    if thread == "main":
        score()
    else:
        worker = threading.Thread(target=score)
        worker.start()
        worker.join(60)
    (reward,) = found
    assert reward.dtype == torch.float32
    assert_close(reward, tensor(case["expect"]["reward"]), case["tolerance"], case["id"])


@pytest.mark.parametrize("case", ERRORS, ids=ids(ERRORS))
def test_reward_refuses_the_golden_errors(case: dict[str, Any]) -> None:
    assert_refused(case)
