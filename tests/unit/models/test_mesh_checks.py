"""Invalid degrees of a mesh or a model are refused with the nearest valid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from titanrl.config.engine_tables import Parallelism
from titanrl.models.mesh_checks import mesh_problems, model_problems, nearest
from titanrl.models.read_config import read_config
from titanrl.models.tiny import create

REPLICATE, SHARD = "data_parallel_replicate_degree", "data_parallel_shard_degree"
TENSOR, PIPELINE, EXPERT = "tensor_parallel_degree", "pipeline_parallel_degree", "expert_parallel_degree"

INTERLEAVED = {"pipeline_parallel_schedule": "Interleaved1F1B"}


@pytest.mark.parametrize(
    ("number", "possible", "expected"),
    [(3, [1, 2, 4, 8], "2 or 4"), (4, [1, 2, 4], "4"), (9, [1, 3], "3"), (1, [2, 4], "2")],
)
def test_nearest_valid_degrees_are_below_and_above(number: int, possible: list[int], expected: str) -> None:
    assert nearest(number, possible) == expected


@pytest.mark.parametrize(
    ("degrees", "processes", "message"),
    [
        ({TENSOR: 2}, 3, "the 3 processes, got replicate 1 x shard -1 x tensor 2 x pipeline 1; start 2 or 4"),
        ({SHARD: 2}, 4, "set data_parallel_shard_degree = 4, or start 2"),
        ({SHARD: 2, TENSOR: 2, PIPELINE: 2}, 10, "start 8 or 16 (--nproc)."),
        ({REPLICATE: 2, SHARD: 3}, 6, ""),
        ({TENSOR: 2, EXPERT: 4}, 8, ""),
        ({PIPELINE: 2, EXPERT: 3}, 8, "divide the 4 ranks of shard degree x tensor degree, got 3"),
    ],
)
def test_degrees_must_form_a_mesh(degrees: dict[str, Any], processes: int, message: str) -> None:
    problems = mesh_problems(Parallelism(**degrees), processes)
    assert message in "\n".join(map(str, problems))
    assert bool(problems) == bool(message)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "llama": create(root / "llama", heads=4, kv_heads=2, layers=5),
        "qwen3_moe": create(root / "qwen3_moe", model_type="qwen3_moe", experts=6),
        "deepseek_v3": create(root / "deepseek_v3", model_type="deepseek_v3", heads=4),
    }


@pytest.mark.parametrize(
    ("name", "degrees", "message"),
    [
        ("llama", {TENSOR: 2, PIPELINE: 7}, ""),
        ("llama", {TENSOR: 4}, "must divide the 4 heads and the 2 heads of keys and values"),
        ("llama", {TENSOR: 4}, "got 4; the nearest: 2."),
        ("llama", {PIPELINE: 8}, "must be at most 7, as schedule '1F1B' makes 8 stages of the 5 layers"),
        ("llama", {PIPELINE: 4} | INTERLEAVED, "must be at most 3, as schedule 'Interleaved1F1B' makes 8"),
        ("llama", {EXPERT: 2}, "expert_parallel_degree must be 1 for"),
        ("qwen3_moe", {EXPERT: 2}, ""),
        ("qwen3_moe", {EXPERT: 2, TENSOR: 2}, ""),
        ("qwen3_moe", {EXPERT: 4}, "must divide the 6 experts of"),
        ("qwen3_moe", {EXPERT: 4}, "got 4; the nearest: 3 or 6."),
        ("qwen3_moe", {TENSOR: 2}, "must be a multiple of tensor_parallel_degree (2) for experts, got 1."),
        ("qwen3_moe", {EXPERT: 2, TENSOR: 2, "enable_sequence_parallel": False}, "must be true where"),
        ("qwen3_moe", {EXPERT: 2, REPLICATE: 2}, "must be 1 where experts are sharded over"),
        ("qwen3_moe", {REPLICATE: 2, SHARD: 1}, "must be 2 or more where the experts of"),
        ("qwen3_moe", {REPLICATE: 2, SHARD: 2}, ""),
        ("deepseek_v3", {EXPERT: 4, TENSOR: 4}, ""),
    ],
)
def test_model_must_fit_the_degrees(
    folders: dict[str, Path], name: str, degrees: dict[str, Any], message: str
) -> None:
    folder = folders[name]
    problems = model_problems(read_config(folder), Parallelism(**degrees), str(folder), "float32")
    assert message in "\n".join(map(str, problems))
    assert bool(problems) == bool(message)
