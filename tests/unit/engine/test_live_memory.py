"""Live tensors from step to step, and peak memory by the number of micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from benchmarks.timing import live_tensors, peak_bytes
from tests.unit.engine.conftest import make_batch, with_old
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import ActivationCheckpoint, Optimizer, Parallelism, Training
from titanrl.engine import Engine
from titanrl.models.memory import Model, estimate_memory, parameters
from titanrl.models.read_config import read_config
from titanrl.models.tiny import create
from titanrl.ops import prefix_attention

Make = Callable[..., Engine]


def live_bytes() -> int:
    """Returns the bytes of all tensors that Python can reach, each storage once.

    Clears the cached attention blocks first.
    """
    prefix_attention._blocks.cache_clear()
    actual: dict[int, int] = {}
    for each in live_tensors(torch.Tensor, torch.nn.Parameter, DTensor):
        if each.device.type == "cpu":
            storage = getattr(each, "_local_tensor", each).untyped_storage()
            actual[storage.data_ptr()] = storage.nbytes()
    return sum(actual.values())


@pytest.mark.slow
def test_live_tensors_are_constant_from_the_second_step_on(make_engine: Make, objective: Objective) -> None:
    engine = make_engine(with_reference=True)
    sizes = []
    for seed, length in enumerate((40, 44, 40, 48, 42)):
        batch = with_old(make_batch(seed, length), engine)
        engine.frozen["reference"].score(batch)
        engine.update(batch, objective, (0.1, 0.0))
        del batch
        sizes.append(live_bytes())
    assert len(set(sizes[1:])) == 1, sizes


@pytest.mark.slow
def test_peak_does_not_grow_with_the_number_of_micro_batches(
    make_engine: Make, objective: Objective, tmp_path: Path
) -> None:
    """Three times as many groups in three times as many micro-batches of the same size."""
    engine = make_engine()
    one = with_old(make_batch(), engine)
    three = torch.cat([one, one, one])
    three["group_id"] = three["group_id"] + torch.arange(3).repeat_interleave(len(one)) * 100
    three["loss_weight"] = three["loss_weight"] / 3
    peaks = []
    for batch in (one, three):
        engine.update(batch, objective, (0.0, 0.0))  # The first step creates the moments.
        peaks.append(peak_bytes(lambda batch=batch: engine.update(batch, objective, (0.0, 0.0)), tmp_path))
    # Micro-batches are small until they are computed; three times the activations would double the peak.
    assert peaks[1] <= 1.2 * peaks[0], peaks


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "deepseek_v3"])
def test_parameter_count_equals_the_models(tmp_path: Path, make_engine: Make, family: str) -> None:
    folder = create(tmp_path / "model", model_type=family, layers=3, scale=0.2)  # type: ignore[arg-type]
    engine = make_engine(model=str(folder))
    actual = sum(parameter.numel() for parameter in engine.policy.scoring_model.model.parameters())
    assert sum(parameters(read_config(folder), is_value_model=False)) == actual


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe"])
def test_memory_estimate_is_within_15_percent_of_an_update(
    tmp_path: Path, make_engine: Make, objective: Objective, family: str
) -> None:
    folder = create(tmp_path / "model", model_type=family, tied=False, scale=0.2)  # type: ignore[arg-type]
    before = live_bytes()
    engine = make_engine(model=str(folder), training={"max_tokens_per_microbatch": 300})
    batch = with_old(make_batch(), engine)
    (micro_batch,) = engine.policy.scoring_model.micro_batches(batch)
    held = micro_batch.num_tokens
    rows = sum(value.nbytes for value in (*batch.values(), *micro_batch.batch.values()))
    del micro_batch
    engine.update(batch, objective, (0.0, 0.0))
    peak = peak_bytes(lambda: engine.update(batch, objective, (0.0, 0.0)), tmp_path)
    measured = live_bytes() - before - rows + peak
    policy = Model(
        name="policy",
        config=read_config(folder),
        is_value_model=False,
        dtype="float32",
        optimizer=Optimizer(),
    )
    training = Training(max_tokens_per_microbatch=held, mixed_precision_param="float32")
    parts = estimate_memory([policy], Parallelism(), training, ActivationCheckpoint(), 1)
    assert sum(part.size for part in parts) == pytest.approx(measured, rel=0.15)
