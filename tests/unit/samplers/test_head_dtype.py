"""A float32 head in the trainer and in the samplers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from tests.unit.samplers.test_torch_sampler import host_of
from titanrl.components.samplers.torch.forward import hidden_states, logits_of
from titanrl.components.samplers.vllm import VLLM
from titanrl.components.samplers.vllm.engine import VLLMSampler
from titanrl.config.engine_tables import ActivationCheckpoint, Parallelism, Training
from titanrl.config.tables import Model
from titanrl.engine import Engine, EngineConfig
from titanrl.models import memory, tiny
from titanrl.models.read_config import read_config


@pytest.mark.parametrize("head_dtype", [None, "float32"])
def test_torch_sampler_rounds_logits_only_without_float32_head(
    tmp_path: Path, head_dtype: Literal["float32"] | None
) -> None:
    folder = tiny.create(tmp_path / "tiny", layers=1)
    training = Training(seq_len=64, max_tokens_per_microbatch=256, mixed_precision_param="bfloat16")
    engine = Engine(EngineConfig(model=str(folder), head_dtype=head_dtype, training=training))
    with engine.inference() as parts:
        hidden = hidden_states(parts[0], list(parts[0].layers.values()), torch.tensor([[5]]), None)
        logits = logits_of(parts[0], hidden)
    engine.close()
    assert hidden.dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    assert torch.equal(logits, logits.bfloat16().float()) == (head_dtype is None)


@pytest.mark.parametrize("head_dtype", [None, "float32"])
def test_vllm_is_asked_for_the_head_of_the_trainer(tmp_path: Path, head_dtype: str | None) -> None:
    sampler = VLLMSampler.__new__(VLLMSampler)
    sampler._settings, sampler._context, sampler._on_cpu = VLLM(), host_of(None, head_dtype=head_dtype), False
    sampler._sleeps = False
    overrides: dict[str, Any] | None = sampler._arguments().get("hf_overrides")
    assert overrides == (None if head_dtype is None else {"head_dtype": "float32"})


def test_value_head_refuses_head_dtype() -> None:
    with pytest.raises(ValueError, match="head_dtype is not used with head = 'value'"):
        Model(path="m", head="value", head_dtype="float32")


@pytest.mark.parametrize(("compute", "expected"), [("bfloat16", 1), ("float32", 0)])
def test_memory_counts_the_cast_head(tmp_path: Path, compute: Any, expected: int) -> None:
    config = read_config(str(tiny.create(tmp_path / "tiny")))
    settings: dict[str, Any] = {"name": "policy", "config": config, "is_value_model": False}
    mesh, checkpoint = Parallelism(), ActivationCheckpoint()
    parts = [
        memory.estimate_memory(
            [memory.Model(**settings, dtype="float32", optimizer=None, head_dtype=head_dtype)],
            mesh,
            Training(mixed_precision_param=compute),
            checkpoint,
            1,
        )
        for head_dtype in (None, "float32")
    ]
    sizes = [sum(part.size for part in each) for each in parts]
    assert sizes[1] - sizes[0] == expected * config.vocab_size * config.dim * 4
