"""Ratios of trainer to rollout probabilities, and the metrics of a correction, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from titanrl.ops.mismatch import Mismatch, correction_result


def batch(x: list[list[float]], mask: list[list[int]]) -> TensorDict:
    """Returns a batch with log-ratios ``x``, exact in float32."""
    sampler = torch.full((len(x), len(x[0])), -1.0)
    return TensorDict(
        {
            "loss_mask": torch.tensor(mask, dtype=torch.bool),
            "sampler_logprob": sampler,
            "old_logprob": sampler + torch.tensor(x),
        },
        batch_size=[len(x)],
    )


def test_ratio_of_a_sequence_is_the_product_over_its_valid_tokens() -> None:
    mismatch = Mismatch.of(batch([[0.5, 0.25, 9.0], [0.5, math.nan, 0.25]], [[1, 1, 0], [1, 1, 1]]))
    e = math.exp(0.75)
    torch.testing.assert_close(mismatch.ratio("sequence"), torch.tensor([[e, e, 0.0], [e, 0.0, e]]))
    assert mismatch.valid.tolist() == [[True, True, False], [True, False, True]]


def test_ratios_are_clamped_in_log_space() -> None:
    mismatch = Mismatch.of(batch([[50.0, -50.0]], [[1, 1]]))
    torch.testing.assert_close(mismatch.ratio(), torch.tensor([[math.exp(20.0), math.exp(-20.0)]]))
    assert mismatch.ratio("sequence").tolist() == [[1.0, 1.0]]


def test_mismatch_metrics_are_computed_before_truncation() -> None:
    mismatch = Mismatch.of(batch([[0.5, -0.5, 0.0]], [[1, 1, 1]]))
    ratio = mismatch.ratio()
    result = mismatch.result(ratio.clamp_max(1.0), torch.tensor([[True, True, False]]), ratio)
    up, down = math.exp(0.5), math.exp(-0.5)
    assert float(result.metrics["ratio_mean"]) == pytest.approx((up + down + 1) / 3)
    assert float(result.metrics["ratio_max"]) == pytest.approx(up)
    assert float(result.metrics["mismatch_kl"]) == pytest.approx((up - 1.5 + down - 0.5) / 3)
    assert float(result.metrics["dropped_fraction"]) == pytest.approx(1 / 3)
    assert float(result.metrics["effective_sample_size"]) == pytest.approx(
        (1 + down) ** 2 / (3 * (1 + down**2))
    )


def test_effective_sample_size_of_dropped_and_of_empty_batches() -> None:
    mask = torch.ones(1, 2, dtype=torch.bool)
    dropped = correction_result(mask, mask, ~mask).metrics
    assert float(dropped["dropped_fraction"]) == 1.0
    assert float(dropped["effective_sample_size"]) == 0.0
    empty = correction_result(~mask, mask, mask).metrics
    assert all(value.isnan() for value in empty.values())
