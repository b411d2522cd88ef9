"""A float32 head over bfloat16 layers gives the losses and gradients of one process on every mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.torchrun import launch
from titanrl.models import tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]
WORKER = Path(__file__).parent / "worker.py"
MESHES = {
    "fsdp": {"data_parallel_shard_degree": 2},
    "tensor": {"tensor_parallel_degree": 2},
    "pipeline": {"pipeline_parallel_degree": 2},
}
KINDS = ("tied", "untied")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("head")
    cases = {
        f"{kind}{suffix}": {
            "model": str(tiny.create(folder / f"{kind}{suffix}", tied=kind == "tied", scale=0.2)),
            "losses": ["ppo_clip"],
            "max_norm": 1e9,
            "precision": "bfloat16",
        }
        | ({"head_dtype": "float32"} if not suffix else {})
        for kind in KINDS
        for suffix in ("", " in bfloat16")
    }
    on_meshes = {
        f"{mesh} {kind}": cases[kind] | {"parallelism": MESHES[mesh]} for mesh in MESHES for kind in KINDS
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for processes, each in ((1, cases), (2, on_meshes)):
        (folder / str(processes)).mkdir()
        (folder / str(processes) / "cases.json").write_text(json.dumps(each))
        ranks = launch(WORKER, folder / str(processes), processes, timeout_seconds=280)
        found |= {name: [rank[name] for rank in ranks] for name in each}
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", MESHES)
def test_mesh_gives_the_loss_and_gradients_of_one_process(
    results: dict[str, list[dict[str, Any]]], mesh: str, kind: str
) -> None:
    (one,) = results[kind]
    expected = one["steps"]["ppo_clip"]
    ranks = [rank["steps"]["ppo_clip"] for rank in results[f"{mesh} {kind}"]]
    for rank in ranks:
        # Under tensor parallelism the layers add partial sums that are rounded to bfloat16.
        tolerance = 2e-2 if mesh == "tensor" else 1e-5
        loss = rank["metrics"]["loss/total"][0]
        assert loss == pytest.approx(expected["metrics"]["loss/total"][0], abs=tolerance)
    gradients = {name: value for rank in ranks for name, value in rank["gradients"].items()}
    for name, value in expected["gradients"].items():
        error = (gradients[name] - value).norm() / value.norm()
        # Each rank rounds its own sum to bfloat16, of which one step is 2^-8.
        assert error < (0.15 if mesh == "tensor" else 2**-6), f"{name}: {error:.1e}"


@pytest.mark.parametrize("kind", KINDS)
def test_head_dtype_changes_scores_and_no_weight(results: dict[str, list[dict[str, Any]]], kind: str) -> None:
    (head,), (plain,) = results[kind], results[f"{kind} in bfloat16"]
    scores = [each["scores"]["ppo_clip"]["logprob"] for each in (head, plain)]
    assert 1e-4 < (scores[0] - scores[1]).abs().max() < 0.1
    assert head["weights"].keys() == plain["weights"].keys()
    assert all(value.dtype == torch.float32 for value in head["weights"].values())
