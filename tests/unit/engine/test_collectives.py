"""Collectives between ranks, from the view of one of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch.distributed as dist

from titanrl.engine.collectives import all_reduce_sums


def test_all_reduce_sums_adds_over_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_rank_failed_twice(parts: list[Any], ours: Sequence[Any], group: object) -> None:
        del group
        parts[:] = [ours, [{"reward/a_failures": 2.0, "reward/b_failures": 0.0}]]

    monkeypatch.setattr(dist, "all_gather_object", other_rank_failed_twice)
    counts = {"reward/a_failures": 1.0, "reward/b_failures": 3.0}
    assert all_reduce_sums(counts, None, 1) == counts
    assert all_reduce_sums(counts, None, 2) == {"reward/a_failures": 3.0, "reward/b_failures": 3.0}
