"""Ranks that hold the same rows score them once, and fail together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.torchrun import launch
from titanrl.models import tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).parent / "rewards_worker.py"
FILE = f"""
base = "{ROOT}/experiments/algorithms/grpo.toml"
[model]
path = "FOLDER/model"
[prompts]
name = "jsonl"
path = "FOLDER/prompts.jsonl"
[sampler]
name = "torch"
max_response_tokens = 4
[[reward]]
name = "moody"
patience = 2
[loop]
steps = 1
prompts_per_step = 2
samples_per_prompt = 2
[training]
seq_len = 64
mixed_precision_param = "float32"
"""
MESHES = {
    "tensor": ["parallelism.tensor_parallel_degree=2"],
    "pipeline": ["parallelism.pipeline_parallel_degree=2"],
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("rewards")
    tiny.create(folder / "model", scale=0.3)
    prompts = [{"prompt": f"say {number}", "answer": str(number)} for number in range(3)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (folder / "grpo.toml").write_text(FILE.replace("FOLDER", str(folder)))
    (folder / "cases.json").write_text(json.dumps(MESHES))
    return launch(WORKER, folder, 2, timeout_seconds=500)


@pytest.mark.parametrize("mesh", MESHES)
def test_ranks_with_the_same_rows_call_a_reward_once(ranks: list[dict[str, Any]], mesh: str) -> None:
    first, second = (rank[mesh] for rank in ranks)
    assert first["calls"] == [4, 4, 4]
    assert second["calls"] == []
    for key in ("groups", "rewards", "scored"):
        assert len(first[key]) == 4
        assert torch.equal(first[key], second[key])
    assert not torch.equal(first["rewards"], first["scored"])


@pytest.mark.parametrize("mesh", MESHES)
def test_reward_that_raises_on_one_rank_raises_on_all(ranks: list[dict[str, Any]], mesh: str) -> None:
    first, second = (rank[mesh]["failure"] for rank in ranks)
    assert first == "the judge is gone"
    assert second == "TrainingError: the judge is gone"
