"""Every mesh gives the losses and full gradients of one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from titanrl.models import tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
WORKER = Path(__file__).parent / "worker.py"
ATOL = 1e-5


def launch(folder: Path, processes: int, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what each rank of a torchrun saw."""
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(json.dumps(case))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    done = subprocess.run([*command, str(WORKER), str(folder)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(processes)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    folder = tmp_path_factory.mktemp("models")
    return {tied: str(tiny.create(folder / str(tied), tied=tied, scale=0.2)) for tied in (True, False)}


@pytest.fixture(scope="module")
def alone(models: dict[bool, str], tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """The same three steps on one process; in the second one, half of the groups have nothing to train."""
    folder = tmp_path_factory.mktemp("alone")
    return {
        tied: launch(folder / str(tied), 1, {"model": model, "starve": 1, "shares": 2})[0]
        for tied, model in models.items()
    }


MESHES = {
    "fsdp": {},
    "replicate": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1},
    "tensor": {"tensor_parallel_degree": 2},
    "tensor without sequence": {"tensor_parallel_degree": 2, "enable_sequence_parallel": False},
    "pipeline": {"pipeline_parallel_degree": 2},
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("mesh", MESHES)
def test_two_processes_equal_one(
    mesh: str, tied: bool, models: dict[bool, str], alone: dict[bool, dict[str, Any]], tmp_path: Path
) -> None:
    if mesh == "pipeline" and tied:
        pytest.skip("pipeline stages untie the head, which is another model")
    case = {"model": models[tied], "parallelism": MESHES[mesh], "starve": 1, "shares": 2}
    ranks = launch(tmp_path / "two", 2, case)
    one = alone[tied]
    for found in ranks:
        assert found["losses"] == pytest.approx(one["losses"], abs=ATOL)
        assert found["counts"] == one["counts"]
    for step, wanted in enumerate(one["gradients"]):
        found = {name: value for rank in ranks for name, value in rank["gradients"][step].items()}
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, atol=ATOL, rtol=1e-4)
    for name, value in ranks[0]["weights"].items():
        assert torch.equal(value, ranks[1]["weights"][name]), name


@pytest.mark.parametrize("tied", [True, False])
def test_scores_do_not_depend_on_the_mesh(
    tied: bool, models: dict[bool, str], alone: dict[bool, dict[str, Any]], tmp_path: Path
) -> None:
    ranks = launch(tmp_path / "two", 2, {"model": models[tied], "steps": 1})
    wanted = alone[tied]["scores"][0]
    for rank in ranks:
        for key in ("logprob", "entropy"):
            for group in rank["scores"][0]["group_id"].unique():
                mine = rank["scores"][0][key][rank["scores"][0]["group_id"] == group]
                torch.testing.assert_close(
                    mine, wanted[key][wanted["group_id"] == group], atol=ATOL, rtol=1e-5
                )


def test_bfloat16_on_two_processes_is_bfloat16_on_one(models: dict[bool, str], tmp_path: Path) -> None:
    case = {"model": models[True], "precision": "bfloat16", "shares": 2, "steps": 2}
    (one,) = launch(tmp_path / "one", 1, case)
    two = launch(tmp_path / "two", 2, case)
    assert two[0]["losses"][0] == pytest.approx(one["losses"][0], abs=1e-5)
    for name, value in one["gradients"][0].items():
        # Each rank rounds its own sum to bfloat16 before the float32 reduction.
        torch.testing.assert_close(two[0]["gradients"][0][name], value, atol=4e-3, rtol=2e-2)


def test_four_processes_of_two_axes_equal_one(
    models: dict[bool, str], alone: dict[bool, dict[str, Any]], tmp_path: Path
) -> None:
    case = {"model": models[False], "parallelism": {"tensor_parallel_degree": 2}, "starve": 1, "shares": 2}
    ranks = launch(tmp_path / "four", 4, case)
    assert ranks[0]["losses"] == pytest.approx(alone[False]["losses"], abs=ATOL)
    for name, value in alone[False]["gradients"][0].items():
        torch.testing.assert_close(ranks[0]["gradients"][0][name], value, atol=ATOL, rtol=1e-4)
