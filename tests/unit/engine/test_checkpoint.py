"""Checkpoints: a resumed run equals the uninterrupted one bit for bit; an incomplete one is never loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from tests.unit.engine.conftest import make_batch
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import Checkpoint, LRScheduler, Optimizer
from titanrl.engine import Engine, has_checkpoint
from titanrl.errors import TrainingError

pytestmark = pytest.mark.slow

Make = Callable[..., Engine]


class Position:
    """A replacement of the training loop's state: a counter, and a list that grows."""

    def __init__(self) -> None:
        self.step = 0
        self.seen: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "seen": self.seen, "random": torch.get_rng_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step, self.seen = state_dict["step"], state_dict["seen"]
        torch.set_rng_state(state_dict["random"])


def start(make_engine: Make, folder: Path, **table: Any) -> tuple[Engine, Position]:
    position = Position()
    engine = make_engine(
        state=position,
        checkpoints=folder / "checkpoints",
        checkpoint=Checkpoint(**({"interval": 1, "keep_latest_k": 0} | table)),
        lr_scheduler=LRScheduler(warmup_steps=4, decay_ratio=0.5),
    )
    return engine, position


def go_on(
    engine: Engine, position: Position, objective: Objective, until: int, *, saves: bool = True
) -> None:
    while position.step < until:
        batch = make_batch(position.step)
        batch["old_logprob"] = torch.rand(batch["labels"].shape) * -5 * batch["loss_mask"]
        batch["ref_logprob"] = batch["old_logprob"]
        engine.update(batch, objective, (0.1, 0.0))
        position.seen.append(position.step)
        position.step += 1
        if saves:
            engine.save(position.step)


@pytest.mark.parametrize(("stop", "mode"), [(1, "disabled"), (3, "disabled"), (3, "async")])
def test_resumed_run_is_bitwise_the_uninterrupted_one(
    tmp_path: Path, make_engine: Make, objective: Objective, stop: int, mode: str
) -> None:
    torch.manual_seed(0)
    engine, position = start(make_engine, tmp_path / "whole")
    go_on(engine, position, objective, 5)
    whole = dict(engine.weights())
    torch.manual_seed(0)
    engine, position = start(make_engine, tmp_path / "cut", async_mode=mode)
    go_on(engine, position, objective, stop)
    # The background write holds the weights at the time of the save.
    go_on(engine, position, objective, stop + 1, saves=False)
    engine.close()
    torch.manual_seed(123)
    engine, position = start(make_engine, tmp_path / "cut")
    assert engine.load()
    assert position.step == stop
    go_on(engine, position, objective, 5)
    assert position.seen == [0, 1, 2, 3, 4]
    assert all(torch.equal(value, whole[name]) for name, value in engine.weights())


def test_load_returns_false_without_a_checkpoint(tmp_path: Path, make_engine: Make) -> None:
    engine, _ = start(make_engine, tmp_path)
    assert not engine.load()
    assert not has_checkpoint(tmp_path / "checkpoints")


def test_incomplete_checkpoint_is_skipped(tmp_path: Path, make_engine: Make, objective: Objective) -> None:
    engine, position = start(make_engine, tmp_path)
    go_on(engine, position, objective, 3)
    (tmp_path / "checkpoints" / "step-3" / "manifest.json").unlink()
    engine, position = start(make_engine, tmp_path)
    assert engine.load()
    assert position.step == 2
    assert has_checkpoint(tmp_path / "checkpoints")


def test_repeated_step_is_unmarked_while_it_is_written(
    tmp_path: Path, make_engine: Make, objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, position = start(make_engine, tmp_path)
    go_on(engine, position, objective, 2)
    mark = tmp_path / "checkpoints" / "step-2" / "manifest.json"
    assert mark.is_file()

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._checkpoints._manager, "dcp_save", die)
    with pytest.raises(KeyboardInterrupt):
        engine.save(2)
    assert not mark.is_file()
    engine, position = start(make_engine, tmp_path)
    assert engine.load()
    assert position.step == 1


@pytest.mark.parametrize(
    ("free", "mode", "says"),
    [
        (17 << 20, "disabled", "full, 17 MiB are free: the checkpoint of step 2"),
        (17 << 20, "async", "full, 17 MiB are free: the checkpoint of step 2"),
        (1 << 40, "disabled", "step-2' could not be written: unexpected pos 704"),
        (1 << 40, "async", "step-2' could not be written: unexpected pos 704"),
    ],
)
def test_full_disk_is_reported_and_keeps_the_previous_checkpoint(
    tmp_path: Path,
    make_engine: Make,
    objective: Objective,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    mode: str,
    says: str,
) -> None:
    def write(*_: Any, **__: Any) -> None:
        raise RuntimeError("unexpected pos 704 vs 598")  # torch's message for a truncated file

    engine, position = start(make_engine, tmp_path, async_mode=mode)
    go_on(engine, position, objective, 1)
    engine.close()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2 * free, free, free))
    monkeypatch.setattr(FileSystemWriter, "write_data", write)

    def save() -> None:
        engine.save(2)
        engine.close()

    with pytest.raises(TrainingError, match=says):
        save()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-1"]
    again, position = start(make_engine, tmp_path)
    assert again.load()
    assert position.step == 1


def test_only_due_and_last_steps_are_saved(tmp_path: Path, make_engine: Make) -> None:
    engine, _ = start(make_engine, tmp_path, interval=3)
    assert [engine.save(step, last=step == 4) for step in range(1, 5)] == [False, False, True, True]
    engine.close()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-3", "step-4"]


def test_oldest_checkpoints_are_deleted(tmp_path: Path, make_engine: Make) -> None:
    engine, _ = start(make_engine, tmp_path, keep_latest_k=2)
    for step in range(1, 5):
        engine.save(step)
    engine.close()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-3", "step-4"]


def test_disabled_checkpoints_write_nothing(tmp_path: Path, make_engine: Make) -> None:
    engine, _ = start(make_engine, tmp_path, enable=False)
    assert not engine.save(1, last=True)
    assert not engine.load()
    shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)


def test_changed_optimizer_settings_hold_from_the_first_resumed_step(
    make_engine: Make, tmp_path: Path, objective: Objective
) -> None:
    engine, position = start(make_engine, tmp_path)
    go_on(engine, position, objective, 2)
    engine.close()

    def resumed(optimizer: Optimizer) -> tuple[dict[str, Any], torch.Tensor]:
        """Return the settings after a load, and the change of a weight by the next step."""
        position = Position()
        engine = make_engine(
            state=position,
            checkpoints=tmp_path / "checkpoints",
            checkpoint=Checkpoint(interval=1, keep_latest_k=0),
            lr_scheduler=LRScheduler(warmup_steps=4, decay_ratio=0.5),
            optimizer=optimizer,
        )
        assert engine.load()
        group = dict(next(iter(engine.policy.optimizers)).param_groups[0])
        weight = next(engine.modules[0].parameters())
        before = weight.detach().clone()
        go_on(engine, position, objective, 3, saves=False)
        return group, (weight.detach() - before).double()

    table = Optimizer(lr=1e-3, weight_decay=0.0)
    (old, slow), (new, fast) = resumed(table), resumed(replace(table, lr=3e-3, beta2=0.9, eps=1e-7))
    assert (old["lr"], new["lr"]) == (
        pytest.approx(0.75e-3),
        pytest.approx(2.25e-3),
    )  # Step 3 of 4 of the warm-up.
    assert (new["initial_lr"], new["betas"], new["eps"]) == (3e-3, (0.9, 0.9), 1e-7)
    _, faster = resumed(replace(table, lr=3e-3))
    torch.testing.assert_close(faster, 3 * slow, rtol=1e-3, atol=1e-7)
    assert not torch.allclose(fast, faster)
    coupled, _ = resumed(replace(table, name="Adam"))
    assert (old["decoupled_weight_decay"], coupled["decoupled_weight_decay"]) == (True, False)
