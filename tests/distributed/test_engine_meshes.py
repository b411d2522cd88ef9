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
MESHES: dict[str, dict[str, Any]] = {
    "fsdp": {},
    "replicate": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1},
    "tensor": {"tensor_parallel_degree": 2},
    "tensor without sequence": {"tensor_parallel_degree": 2, "enable_sequence_parallel": False},
    "pipeline": {"pipeline_parallel_degree": 2},
}
# Stages untie the head, which is another model.
LEFT_OUT = [("pipeline", "tied")]
Results = dict[tuple[int, str], list[dict[str, Any]]]
"""(processes, case) -> what each rank saw."""


def launch(folder: Path, processes: int, cases: dict[str, dict[str, Any]]) -> Results:
    """Runs all cases in one torchrun."""
    folder.mkdir(parents=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    done = subprocess.run([*command, str(WORKER), str(folder)], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [torch.load(folder / f"rank-{rank}.pt") for rank in range(processes)]
    return {(processes, name): [rank[name] for rank in ranks] for name in cases}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Three steps each; in the second, only the first of two ranks has anything to train.

    The untied model has a critic beside it.
    """
    folder = tmp_path_factory.mktemp("meshes")
    models = {
        tied: str(tiny.create(folder / tied, tied=tied == "tied", scale=0.2)) for tied in ("tied", "untied")
    }
    alone = {kind: {"model": model, "starve": 1, "shares": 2} for kind, model in models.items()}
    teacher = tiny.create(folder / "teacher", tied=False, layers=1, hidden=16, scale=0.4, seed=1)
    alone["distill"] = alone["untied"] | {"teacher": str(teacher)}
    alone["untied"]["critic"] = str(tiny.create(folder / "critic", head="value", scale=0.2))
    rounded = {"model": models["tied"], "precision": "bfloat16", "shares": 2, "steps": 1}
    both = {
        f"{mesh} {kind}": alone[kind] | {"parallelism": degrees}
        for mesh, degrees in MESHES.items()
        for kind in alone
        if (mesh, kind) not in LEFT_OUT
    }
    four = {"fsdp tensor untied": alone["untied"] | {"parallelism": {"tensor_parallel_degree": 2}}}
    return (
        launch(folder / "one", 1, alone | {"bfloat16": rounded})
        | launch(folder / "two", 2, both | {"bfloat16": rounded})
        | launch(folder / "four", 4, four)
    )


CASES = [
    (2, f"{mesh} {kind}")
    for mesh in MESHES
    for kind in ("tied", "untied", "distill")
    if (mesh, kind) not in LEFT_OUT
]


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("processes", "case"), [*CASES, (4, "fsdp tensor untied")])
def test_mesh_gives_the_losses_and_gradients_of_one_process(
    results: Results, processes: int, case: str
) -> None:
    ranks = results[processes, case]
    (one,) = results[1, case.split()[-1]]
    for rank in ranks:
        assert rank["losses"] == pytest.approx(one["losses"], abs=ATOL)
        assert rank["counts"] == one["counts"]
    for step, wanted in enumerate(one["gradients"]):
        found = {name: value for rank in ranks for name, value in rank["gradients"][step].items()}
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, atol=ATOL, rtol=1e-4)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("processes", "case"), CASES)
def test_every_rank_streams_the_same_weights(results: Results, processes: int, case: str) -> None:
    first, *others = (rank["weights"] for rank in results[processes, case])
    (one,) = results[1, case.split()[-1]]
    assert first.keys() == one["weights"].keys()
    for other in others:
        assert all(torch.equal(value, other[name]) for name, value in first.items())


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("processes", "case"), CASES)
def test_scores_do_not_depend_on_the_mesh(results: Results, processes: int, case: str) -> None:
    (one,) = results[1, case.split()[-1]]
    wanted = one["scores"][0]
    for rank in results[processes, case]:
        found = rank["scores"][0]
        for group in found["group_id"].unique():
            mine, theirs = found["group_id"] == group, wanted["group_id"] == group
            for key in found.keys() - {"group_id"}:
                torch.testing.assert_close(found[key][mine], wanted[key][theirs], atol=2e-5, rtol=1e-5)


@pytest.mark.timeout(2400)
def test_bfloat16_on_two_processes_is_bfloat16_on_one(results: Results) -> None:
    (one,) = results[1, "bfloat16"]
    for rank in results[2, "bfloat16"]:
        assert rank["losses"] == pytest.approx(one["losses"], abs=ATOL)
        for name, value in one["gradients"][0].items():
            # Each rank rounds its own sum to bfloat16 before the float32 reduction.
            torch.testing.assert_close(rank["gradients"][0][name], value, atol=4e-3, rtol=2e-2)
