"""The 135M model of the benchmarks, in a training engine and in the context of its samplers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from titanrl.models.accelerator import computes_bfloat16
from titanrl.protocols import SamplerContext

if TYPE_CHECKING:
    from titanrl.engine import Engine

MODEL = Path(__file__).parents[1] / "models" / "smollm2-135m"
NO_TOKEN = 49151
"""A token id that is practically never sampled: as the end token, it makes all responses equally long."""

needs_model = pytest.mark.skipif(not MODEL.is_dir(), reason="needs `titanrl model get smollm2-135m`")
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM")


def fast_dtype() -> str:
    """Returns the precision that is fastest on this CPU."""
    return "bfloat16" if computes_bfloat16() else "float32"


def trainer() -> tuple[Engine, SamplerContext]:
    """Return an engine in the precision that is fastest on this CPU, and the context of its samplers."""
    from titanrl.config.engine_tables import Training
    from titanrl.engine import Engine, EngineConfig

    dtype = fast_dtype()
    training = Training(seq_len=256, mixed_precision_param=dtype)
    engine = Engine(EngineConfig(model=str(MODEL), training=training))
    host = SamplerContext(
        model_path=str(MODEL), eos_ids=(NO_TOKEN,), max_length=256, seed=0, dtype=dtype, engine=engine
    )
    return engine, host
