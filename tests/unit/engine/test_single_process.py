"""A single process that computes in its weights' precision holds no second copy of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.unit.engine.conftest import make_batch, with_old
from titanrl.algorithm.objective import Objective
from titanrl.engine import Engine, build

Make = Callable[..., Engine]


@pytest.mark.parametrize(
    ("dtype", "compute", "wrapped"),
    [
        ("float32", "float32", False),
        ("bfloat16", "bfloat16", False),
        ("float32", "bfloat16", True),
    ],
)
def test_fsdp_wraps_only_modules_with_mixed_precision(
    make_engine: Make, dtype: str, compute: str, wrapped: bool
) -> None:
    engine = make_engine(training={"dtype": dtype, "mixed_precision_param": compute})
    assert bool(engine.policy.scoring_model.model.fsdp_modules()) == wrapped


@pytest.mark.slow
def test_steps_are_bitwise_those_under_fsdp(
    make_engine: Make, objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several micro-batches per step, and two steps because of the moments."""
    bare = make_engine()
    monkeypatch.setattr(build, "needs_fsdp", lambda *_, **__: True)
    wrapped = make_engine()
    assert wrapped.policy.scoring_model.model.fsdp_modules()
    for seed in (0, 1):
        batch = with_old(make_batch(seed), bare)
        assert bare.update(batch, objective, (0.1, 0.0)) == wrapped.update(batch, objective, (0.1, 0.0))
    for (name, left), (other, right) in zip(bare.weights(), wrapped.weights(), strict=True):
        assert name == other
        assert torch.equal(left, right), name
