"""Two data-parallel ranks generate the responses of one process, however rows are sharded."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.torchrun import launch
from titanrl.models import tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]
WORKER = Path(__file__).parent / "sampler_worker.py"
VLLM = pytest.param(
    {"name": "vllm", "max_response_tokens": 12, "kv_cache_gib": 0.05, "max_num_seqs": 16},
    id="vllm",
    marks=[
        pytest.mark.vllm,
        pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM"),
    ],
)


def sample(folder: Path, processes: int, sampler: dict[str, Any], kv_heads: int = 1) -> list[dict[str, Any]]:
    """Returns the results of each rank."""
    # Heads of 64: vLLM's CPU attention requires it.
    model = tiny.create(folder / "model", hidden=128, heads=2, kv_heads=kv_heads, scale=0.15)
    (folder / "case.json").write_text(json.dumps({"model": str(model), "sampler": sampler}))
    return launch(WORKER, folder, processes, timeout_seconds=500)


@pytest.mark.parametrize(
    "sampler", [pytest.param({"name": "torch", "max_response_tokens": 12}, id="torch"), VLLM]
)
def test_ranks_sample_as_one_process(sampler: dict[str, Any], tmp_path: Path) -> None:
    (one,) = sample(tmp_path / "one", 1, sampler)
    two = sample(tmp_path / "two", 2, sampler)
    assert [len(actual["answers"]) for actual in two] == [8, 1]
    assert two[0]["answers"] | two[1]["answers"] == one["answers"]
    assert len({tuple(ids) for ids in one["answers"].values()}) == 9
    # A rank without rows takes part and gets none.
    assert [len(actual["again"]) for actual in two] == [8, 0]
    assert max(actual["gap"] for actual in (one, *two)) < 1e-4
    # The trainer's process group outlives the sampler.
    assert [actual["ranks"] for actual in (one, *two)] == [1, 2, 2]


@pytest.mark.parametrize("sampler", [VLLM])
def test_two_ranks_sample_together_with_one_engine(sampler: dict[str, Any], tmp_path: Path) -> None:
    """Each rank has half of every matrix; log-probs equal the trainer's at the weights that it sent."""
    two = sample(tmp_path / "two", 2, sampler | {"tensor_parallel_size": 2}, kv_heads=2)
    assert two[0]["answers"] == two[1]["answers"]
    assert two[0]["answers"] == dict(zip(two[0]["answers"], two[0]["again"], strict=True))
    assert len({tuple(ids) for ids in two[0]["answers"].values()}) == 9
    assert max(actual["gap"] for actual in two) < 1e-4
    assert [actual["ranks"] for actual in two] == [2, 2]
