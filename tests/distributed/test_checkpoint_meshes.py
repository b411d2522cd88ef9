"""A checkpoint of any mesh loads on any other: equal weights, optimizer state and schedule."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.checkpoint_worker import ROUTE, full_state, make_engine, update
from tests.distributed.torchrun import launch
from titanrl.config import load
from titanrl.engine.manifest import read_manifest
from titanrl.models import tiny
from titanrl.training.run import train

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).parent / "checkpoint_worker.py"
FILE = """
base = "{root}/experiments/algorithms/grpo.toml"
[run]
folder = "{folder}/runs"
name = "{name}"
[model]
path = "{folder}/model"
[prompts]
name = "jsonl"
path = "{folder}/prompts.jsonl"
[sampler]
name = "torch"
max_response_tokens = 8
[[reward]]
name = "repetition"
n = 1
[loop]
steps = {steps}
prompts_per_step = 4
[training]
seq_len = 64
mixed_precision_param = "float32"
[optimizer]
lr = 1e-3
eps = 1e-3
[checkpoint]
interval = 1
[report]
tensorboard = false
progress = false
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied model, a checkpoint of two steps on one process, and a run of two steps of four."""
    folder = tmp_path_factory.mktemp("meshes")
    tiny.create(folder / "model", scale=0.3)
    prompts = [{"prompt": f"say {number}", "answer": str(number)} for number in range(7)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    for name, steps in (("whole", 4), ("cut", 2), ("cut", 4)):
        text = FILE.format(root=ROOT, folder=folder, name=name, steps=steps)
        (folder / f"{name}{steps}.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def one(folder: Path) -> dict[str, Any]:
    """The state of one process after two steps, which is checkpoint ``one``, and the next weights."""
    engine, counter = make_engine(str(folder / "model"), folder / "one", {})
    for _ in range(2):
        update(engine, counter)
    engine.save(2)
    state = full_state(engine, counter)
    update(engine, counter)
    state["next"] = dict(engine.weights())
    engine.close()
    return state


@pytest.fixture(scope="module")
def two(folder: Path, one: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of two processes on each mesh, rank by rank."""
    for name in ("whole4", "cut2"):
        train(load(folder / f"{name}.toml"))
    cases = {"model": str(folder / "model"), "mode": "async", "experiment": str(folder / "cut4.toml")}
    (folder / "cases.json").write_text(json.dumps(cases))
    return launch(WORKER, folder, 2, timeout_seconds=500)


@pytest.mark.parametrize(("source", "mesh"), ROUTE)
def test_state_is_bitwise_equal_on_another_mesh(
    one: dict[str, Any], two: list[dict[str, Any]], source: str, mesh: str
) -> None:
    states = [rank[f"{source}-{mesh}"] for rank in two]
    optimizer: dict[str, torch.Tensor] = {}
    for state in states:
        assert state["weights"].keys() == one["weights"].keys()
        assert all(torch.equal(value, one["weights"][name]) for name, value in state["weights"].items())
        assert state["schedule"] == one["schedule"]
        optimizer |= state["optimizer"]
        for name, value in state["next"].items():
            torch.testing.assert_close(value, one["next"][name], rtol=1e-5, atol=1e-6)
    copies = {name: value for name, value in optimizer.items() if "lm_head" in name}
    assert bool(copies) == (mesh == "pipeline")  # the last stage has a copy of the tied matrix
    for name, value in copies.items():
        assert torch.equal(value, one["optimizer"][name.replace("lm_head", "tok_embeddings")])
    others = {name: value for name, value in optimizer.items() if name not in copies}
    assert others.keys() == one["optimizer"].keys()
    assert all(torch.equal(value, one["optimizer"][name]) for name, value in others.items())


def test_each_process_continues_with_the_state_of_a_process(two: list[dict[str, Any]]) -> None:
    assert [rank["one-fsdp"]["loop"] for rank in two] == [{"step": 2, "parts": {"seen": 0}}] * 2
    # The second mesh has as many processes: each gets its own state back.
    assert [rank["fsdp-tensor"]["loop"]["parts"] for rank in two] == [{"seen": 0}] * 2


@pytest.mark.parametrize("mesh", ["fsdp", "tensor", "pipeline"])
def test_one_process_loads_the_checkpoint_of_two(
    folder: Path,
    one: dict[str, Any],
    two: list[dict[str, Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mesh: str,
) -> None:
    shutil.copytree(folder / mesh, tmp_path / mesh)
    (checkpoint,) = (tmp_path / mesh).iterdir()
    manifest = read_manifest(checkpoint)
    assert manifest.mesh["processes"] == 2
    assert {name for name in manifest.files if name.endswith("distcp")} == {"__0_0.distcp", "__1_0.distcp"}
    engine, counter = make_engine(str(folder / "model"), tmp_path / mesh, {})
    with caplog.at_level(logging.WARNING, "titanrl"):
        assert engine.load()
    (message,) = [record.message for record in caplog.records if record.name.startswith("titanrl")]
    assert "written on 2 processes" in message
    assert "not bit for bit" in message
    assert "of process (rank % 2) of the checkpoint" in message
    state = full_state(engine, counter)
    engine.close()
    assert all(torch.equal(value, one["weights"][name]) for name, value in state["weights"].items())
    assert all(torch.equal(value, one["optimizer"][name]) for name, value in state["optimizer"].items())
    assert state["schedule"] == one["schedule"]


def test_run_of_one_process_is_resumed_by_two(folder: Path, two: list[dict[str, Any]]) -> None:
    run = Path(two[0]["run"])
    assert run == folder / "runs" / "cut"
    whole, cut = (
        [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    )
    assert [line["step"] for line in cut] == [line["step"] for line in whole] == [1, 2, 3, 4]
    for expected, actual in zip(whole, cut, strict=True):
        for key in ("reward/mean", "loss/total", "update/grad_norm"):
            assert actual[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-5), (expected["step"], key)
