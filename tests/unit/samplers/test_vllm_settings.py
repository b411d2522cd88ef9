"""What of the `vllm` sampler needs no vLLM: its settings, its process guard, its absence."""

from __future__ import annotations

import os
import random
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from tests.unit.training.sessions import OneProcess
from titanrl.components.samplers.vllm import VLLM
from titanrl.components.samplers.vllm.engine import _completion_of, _needed_bytes
from titanrl.components.samplers.vllm.process import preserved_process_state
from titanrl.errors import ConfigError
from titanrl.models.tiny import create
from titanrl.protocols import SamplerContext


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("models") / "tiny", hidden=64, heads=2, kv_heads=2)


def host_of(model: Path, **fields: Any) -> SamplerContext:
    return SamplerContext(model_path=str(model), eos_ids=(2,), max_length=32, seed=0, **fields)


def test_absent_vllm_names_the_remedy(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    before = dict(os.environ)
    with pytest.raises(ConfigError, match=r"pip install .*or use name = 'torch'"):
        VLLM().start(host_of(model))
    assert dict(os.environ) == before


def test_process_state_is_restored_after_vllm() -> None:
    def state() -> tuple[Any, ...]:
        return (
            dict(os.environ),
            random.getstate(),
            numpy.random.get_state()[1].tobytes(),
            torch.get_rng_state().tolist(),
            torch.set_num_threads,
            torch.get_num_threads(),
            list(warnings.filters),
            sys.getrecursionlimit(),
        )

    def guest() -> None:
        with preserved_process_state({"TITANRL_TEST_GUEST": "1"}):
            assert os.environ["TITANRL_TEST_GUEST"] == "1"
            os.environ["LOCAL_WORLD_SIZE"] = "99"
            del os.environ["PATH"]
            torch.manual_seed(3)
            random.seed(3)
            numpy.random.seed(3)
            set_num_threads(torch.get_num_threads() + 1)
            torch.set_num_threads = lambda count: None
            warnings.simplefilter("error")
            sys.setrecursionlimit(5000)
            raise RuntimeError("guest")

    before, set_num_threads = state(), torch.set_num_threads
    with pytest.raises(RuntimeError, match="guest"):
        guest()
    assert state() == before


@pytest.mark.vllm
def test_logprob_is_that_of_the_sampled_token_not_the_top_one() -> None:
    outputs, logprobs = pytest.importorskip("vllm.outputs"), pytest.importorskip("vllm.logprobs")
    entries = [{7: logprobs.Logprob(-0.1), 3: logprobs.Logprob(-2.3)}]
    completion = outputs.CompletionOutput(0, "", (3,), None, entries, finish_reason="abort")
    assert _completion_of(completion)[:3] == ([3], [-2.3], 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.001),
        ("temperature", 2.5),
        ("max_response_tokens", 0),
        ("top_p", 1.5),
        ("max_num_seqs", 0),
        ("kv_cache_gib", 0.0),
        ("block_size", 0),
        ("tensor_parallel_size", 0),
        ("gpu_memory_utilization", 0.0),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be in"):
        VLLM(**{field: value})


def test_engines_partition_all_ranks(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"must divide the 1 ranks, got 2"):
        VLLM(tensor_parallel_size=2).start(host_of(model))
    engine = OneProcess(world_size=3)
    with pytest.raises(ConfigError, match=r"must divide the 3 ranks, got 2"):
        VLLM(tensor_parallel_size=2).start(host_of(model, engine=engine))


def test_attention_heads_must_divide_and_have_a_supported_size(tmp_path: Path) -> None:
    narrow = create(tmp_path / "narrow", hidden=32, heads=4, kv_heads=2)
    problems = dict(VLLM(tensor_parallel_size=3).problems(str(narrow), None))
    assert f"for heads of 8 ({narrow}), only of 32, 64" in problems["name"]
    assert problems["tensor_parallel_size"].startswith(
        "must divide the 4 attention heads and 2 key-value heads"
    )


@pytest.mark.parametrize(
    ("num_rows", "world_size", "size", "rows"),
    [(8, 1, 1, 8), (None, 1, 1, 16), (100, 1, 1, 16), (9, 2, 1, 5), (8, 2, 2, 8)],
)
def test_kv_cache_holds_the_responses_of_a_step(
    tmp_path: Path, num_rows: int | None, world_size: int, size: int, rows: int
) -> None:
    """A token's keys and values: 2 layers of 2 heads of 8 numbers of 2 bytes each, half of them per rank."""
    folder = create(tmp_path, layers=2, hidden=32, heads=4, kv_heads=2)
    context = host_of(folder, engine=OneProcess(world_size=world_size), num_rows=num_rows)
    settings = VLLM(max_num_seqs=16, block_size=16, tensor_parallel_size=size)
    tokens = rows * (context.max_length + 16) + 16
    assert _needed_bytes(settings, context, "bfloat16") == tokens * 2 * 2 * (2 // size) * 8 * 2


def test_kv_cache_takes_at_most_one_gibibyte(tmp_path: Path) -> None:
    context = replace(host_of(create(tmp_path)), max_length=10**6)
    assert _needed_bytes(VLLM(), context, "float32") == 2**30
