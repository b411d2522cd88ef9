"""Streaming weights yields full tensors one at a time with little memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.distributed.torchrun import launch
from titanrl.models import tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(1200)]
WORKER = Path(__file__).parent / "stream_worker.py"
SHARD, TENSOR = "data_parallel_shard_degree", "tensor_parallel_degree"
PIPELINE, EXPERT = "pipeline_parallel_degree", "expert_parallel_degree"
MESHES = {
    "fsdp": {SHARD: 4},
    "tensor": {TENSOR: 4},
    "fsdp x tensor": {SHARD: 2, TENSOR: 2},
    "fsdp x pipeline": {SHARD: 2, PIPELINE: 2},
    "tensor x pipeline": {TENSOR: 2, PIPELINE: 2},
}
EXPERTS = {
    "experts over fsdp in a pipeline": {SHARD: 2, PIPELINE: 2, EXPERT: 2},
    "experts over tensor in a pipeline": {TENSOR: 2, PIPELINE: 2, EXPERT: 2},
    "experts over fsdp x tensor": {SHARD: 2, TENSOR: 2, EXPERT: 4},
}
WORDY = {f"{name}, many words": MESHES[name] for name in ("fsdp x tensor", "tensor x pipeline")}
WORDS = range(0x4E00, 0x4E00 + 16000)
"""Large enough that embedding and head are the largest tensors, as in every real model."""
BIASES = [f"model.layers.{layer}.mlp.gate.e_score_correction_bias" for layer in (1, 2)]
STAGED = 1 / 8 + 1 / 16 + 1 / 32
"""Fractions of a tensor: the piece that is sent, and its part gathered over an earlier axis."""
PAGES = 1 / 8
"""Fraction of a tensor, about a huge page: the error of the kernel's count."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stream")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    if sys.platform != "linux":
        pytest.skip("The kernel must tell a process's peak of memory.")
    sizes: dict[str, Any] = {"heads": 8, "kv_heads": 4, "layers": 2, "tied": False}
    large = tiny.create(folder / "large", hidden=1536, **sizes)
    wordy = tiny.create(folder / "wordy", hidden=768, characters="".join(map(chr, WORDS)), **sizes)
    mixture = tiny.create(folder / "mixture", model_type="deepseek_v3", layers=3, tied=False, scale=0.2)
    cases = {
        name: {
            "model": str(model),
            "parallelism": parallelism,
            "measured": model is not mixture,
            "export": str(folder / f"export {name}"),
        }
        for model, meshes in ((large, MESHES), (wordy, WORDY), (mixture, EXPERTS))
        for name, parallelism in meshes.items()
    }
    (folder / "cases.json").write_text(json.dumps(cases))
    return launch(WORKER, folder, 4, timeout_seconds=900)


def test_shards_of_any_placement_are_gathered(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for name, actual in rank["gathered"]["large"].items():
            assert actual["equal"], name
            assert actual["rounded"], name
        assert not rank["gathered"]["wrong"]


def test_gathering_takes_little_memory_beside_the_tensor(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for name, actual in rank["gathered"]["large"].items():
            whole = 0 if name.startswith("copies of 1") else 1
            assert whole - PAGES <= actual["extra"] <= whole * (1 + STAGED) + PAGES, name


@pytest.mark.parametrize("mesh", MESHES)
def test_weight_stream_holds_two_tensors_at_a_time(ranks: list[dict[str, Any]], mesh: str) -> None:
    """One tensor until the next one is complete; or a fused tensor and its parts."""
    for rank in ranks:
        actual = rank[mesh]
        assert actual["extra"] <= (2 + STAGED + PAGES) * actual["largest"]
        assert actual["all"] > 8 * actual["largest"]


@pytest.mark.parametrize("mesh", WORDY)
def test_weight_stream_holds_one_large_tensor_at_a_time(ranks: list[dict[str, Any]], mesh: str) -> None:
    for rank in ranks:
        actual = rank[mesh]
        assert 1 - PAGES <= actual["extra"] / actual["largest"] <= 1 + STAGED + 2 * PAGES


@pytest.mark.parametrize("mesh", [*MESHES, *EXPERTS])
def test_pipeline_stages_announce_their_parameters_once(ranks: list[dict[str, Any]], mesh: str) -> None:
    for rank in ranks:
        assert rank[mesh]["exchanges"] == ("pipeline" in mesh)


@pytest.mark.parametrize("mesh", EXPERTS)
def test_expert_bias_is_streamed_in_float32(ranks: list[dict[str, Any]], folder: Path, mesh: str) -> None:
    stored = load_file(folder / "mixture" / "model.safetensors")
    exported = load_file(folder / f"export {mesh}" / "model.safetensors")
    for name in BIASES:
        assert not torch.equal(stored[name], stored[name].bfloat16().float())
        assert torch.equal(exported[name], stored[name])
    for rank in ranks:
        assert rank[mesh]["biases"].keys() == set(BIASES)
        assert all(torch.equal(value, stored[name]) for name, value in rank[mesh]["biases"].items())
        for name, full in zip(BIASES, rank[mesh]["full"].values(), strict=True):
            assert torch.equal(full, stored[name])


def test_other_streamed_parameters_are_bfloat16(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for mesh in (*MESHES, *EXPERTS):
            if "pipeline" in mesh:
                assert rank[mesh]["dtypes"] == {torch.bfloat16}
