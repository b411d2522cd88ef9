"""Execution of runs in separate processes: repetition, failures, sharing of the machine."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.ablation.conftest import Ablation, Finish
from titanrl.ablation import execute as module
from titanrl.ablation.execute import Execution, Slot, execute, log_file, split_machine, visible_devices
from titanrl.ablation.plan import Plan, PlannedRun, plan
from titanrl.ablation.view import AblationView
from titanrl.errors import ConfigError

pytestmark = pytest.mark.slow

WHOLE = [{"step": 1, "reward/mean": 0.1}, {"step": 2, "reward/mean": 0.3}]


class Process:
    """A process that has already ended."""

    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode

    def is_alive(self) -> bool:
        return False

    def join(self) -> None:
        pass


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, finish: Finish) -> list[tuple[str, int]]:
    """Record the started runs; the baseline's run with seed 1 fails."""
    started_runs: list[tuple[str, int]] = []

    def start(_: Any, run: PlannedRun, slot: Slot, nproc: int) -> Process:
        started_runs.append((run.variant, run.seed))
        log_file(run).parent.mkdir(parents=True, exist_ok=True)
        if started_runs[-1] == ("clip_high=0.2", 1):
            log_file(run).write_text("Traceback\nValueError: it broke\n\n")
            return Process(1)
        finish(run, WHOLE)
        return Process(0)

    monkeypatch.setattr(module, "_start", start)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    return started_runs


@pytest.fixture
def planned(ablation: Ablation) -> Plan:
    return plan(ablation())


def test_failed_run_is_reported_and_does_not_stop_the_others(planned: Plan, started: list[Any]) -> None:
    (failure,) = execute(planned.runs, split_machine(2, 1, [0, 1], []))
    assert len(started) == 6
    assert (failure.run.variant, failure.run.seed) == ("clip_high=0.2", 1)
    assert failure.reason.startswith("ValueError: it broke (exit code 1; runs/ablations/study/logs/")


def test_finished_runs_are_skipped_and_failed_ones_are_repeated(planned: Plan, started: list[Any]) -> None:
    execute(planned.runs, split_machine(1, 1, [0], []))
    started.clear()
    execute(planned.runs, split_machine(1, 1, [0], []))
    assert started == [("clip_high=0.2", 1)]


def test_process_that_exits_before_its_last_step_has_failed(
    planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_start", lambda *_: Process(0))
    assert len(execute(planned.runs, split_machine(1, 1, [0], []))) == 6


def test_on_finished_is_called_for_old_and_new_runs_and_may_stop_the_rest(
    planned: Plan, started: list[Any]
) -> None:
    finished: list[PlannedRun] = []
    execute(planned.runs[:1], split_machine(1, 1, [0], []))
    execute(planned.runs[:3], split_machine(1, 1, [0], []), on_finished=finished.append)
    assert [(run.variant, run.seed) for run in finished] == [("clip_high=0.2", 0), ("clip_high=0.28", 0)]

    def refuse(_: PlannedRun) -> None:
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        execute(planned.runs, split_machine(1, 1, [0], []), on_finished=refuse)


def test_cores_and_gpus_are_divided_among_runs() -> None:
    assert [slot.cores for slot in split_machine(2, 1, [0, 1, 4, 5], [])] == [(0, 1), (4, 5)]
    assert [slot.cores for slot in split_machine(3, 1, [0, 1], [])] == [(0, 1), (0,), (1,)]
    assert [slot.devices for slot in split_machine(2, 2, [0], ["3", "4", "5", "6"])] == [
        ("3", "4"),
        ("5", "6"),
    ]
    with pytest.raises(ConfigError, match=r"--jobs times --nproc must be <= 4, .* got 3 x 2"):
        split_machine(3, 2, [0], ["3", "4", "5", "6"])
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "1,GPU-7"}) == ["1", "GPU-7"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "-1"}) == []


def test_number_of_parallel_runs_may_exceed_the_cores(planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    class Working(Process):
        num_polls = 0

        def is_alive(self) -> bool:
            self.num_polls += 1
            return self.num_polls < 3

    running: list[int] = []
    monkeypatch.setattr(module, "_start", lambda *_: Working(0))
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    execute(planned.runs, split_machine(2, 1, [0], []), view=lambda state: running.append(len(state.running)))
    assert max(running) == 2


def test_plain_stream_gets_a_line_per_run(planned: Plan, started: list[Any]) -> None:
    console = Console(file=io.StringIO(), width=40)
    with AblationView(planned, console) as view:
        execute(planned.runs, split_machine(1, 1, [0], []), view=view.show)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 6
    assert lines[0].startswith("1/6 runs  clip_high=0.2 seed 0: reward/mean 0.3  ")
    assert "3/6 runs  1 failed" in lines[2]


def test_live_table_marks_every_seed(planned: Plan, started: list[Any]) -> None:
    states: list[Execution] = []
    execute(planned.runs, split_machine(1, 1, [0], []), view=states.append)
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with AblationView(planned, console) as view:
        view.show(states[-1])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "●×●" in text
    assert "●●●" in text
    assert "0.3 ± 0" in text


def test_leftovers_without_an_identity_are_removed(
    planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        def Process(self, **arguments: Any) -> Any:
            self.arguments = arguments
            return self

        def start(self) -> None:
            pass

    run, context = planned.runs[0], Context()
    (run.folder.path / "checkpoints").mkdir(parents=True)
    module._start(context, run, Slot((0,), ()), 1)  # type: ignore[arg-type]
    assert not run.folder.path.exists()
    assert context.arguments["args"][2] is False
