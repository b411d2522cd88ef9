"""Numerics of the engine that one process shows: clipping, positions, rotary angles.

Cases that need several processes are in tests/distributed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from titanrl.engine import Engine, update
from titanrl.engine.packing import pack_sequences
from titanrl.engine.pipeline import padded_length

Make = Callable[..., Engine]


def test_clip_grad_norm_scales_the_gradient_that_it_measures() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert float(update.clip_grad_norm_([parameter], 1.0)) == pytest.approx(5.0)
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8]), atol=1e-5, rtol=1e-5)


def test_positions_restart_at_every_packed_row() -> None:
    ids = torch.tensor([[4, 5, 6, 0], [7, 8, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
    rows = TensorDict(
        {"input_ids": ids, "labels": ids, "loss_mask": mask, "group_id": torch.tensor([0, 1])},
        batch_size=[2],
    )
    actual = pack_sequences(rows, torch.arange(2), torch.device("cpu"))
    assert actual.positions.tolist() == [[0, 1, 2, 0, 1]]


def test_rotary_angles_are_float32_in_a_bfloat16_model(tmp_path: Path, make_engine: Make) -> None:
    """At position 8191 the angle of a frequency kept in bfloat16 is off by radians."""
    from titanrl.models import tiny

    folder = tiny.create(tmp_path / "long", layers=1, hidden=64, heads=1, kv_heads=1, context=8192)
    training = {"dtype": "bfloat16", "mixed_precision_param": "bfloat16", "seq_len": 8192}
    engine = make_engine(model=str(folder), training=training)
    (cache,) = {
        buffer for part in engine.modules for name, buffer in part.named_buffers() if name.endswith("cache")
    }
    frequency = 10000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    expected = torch.polar(torch.ones(32, dtype=torch.float64), 8191 * frequency)
    assert cache.dtype == torch.complex64
    torch.testing.assert_close(cache[8191].to(torch.complex128), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("longest", "divisor", "expected"), [(1, 1, 64), (64, 2, 64), (65, 2, 128), (1, 3, 192)]
)
def test_pipeline_sequence_length_is_divisible_by_tensor_parallel_ranks(
    longest: int, divisor: int, expected: int
) -> None:
    assert padded_length(longest, divisor) == expected
