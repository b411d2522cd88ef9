"""The worker pool: results in order, timed-out and dying calls isolated, no process left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.runtime.worker_pool_targets import (
    act,
    leave_child_and_die,
    leave_children,
    threads_and_modules,
)
from titanrl.runtime.worker_pool import CallResult, WorkerPool, descendants, map_with_timeout

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(act, num_workers=2)
    yield pool
    pool.close()


def test_results_come_in_order(pool: WorkerPool) -> None:
    words = [f"w{index}" for index in range(20)]
    assert pool.map([(word,) for word in words], 10.0) == [CallResult(word, None) for word in words]


def test_no_items_start_no_worker() -> None:
    pool = WorkerPool(act)
    assert pool.map([], 1.0) == []
    assert pool._workers == []


@pytest.mark.parametrize("what", ["sleep", "spin", "tower"])
def test_timed_out_item_fails_and_the_next_is_scored(pool: WorkerPool, what: str) -> None:
    """Also inside C code that no signal handler interrupts."""
    pool.map([("warm",), ("warm",)], 10.0)
    start = time.monotonic()
    results = pool.map([("a",), (what,), ("b",), ("c",)], 1.0)
    assert results == [
        CallResult("a", None),
        CallResult(None, "timeout"),
        CallResult("b", None),
        CallResult("c", None),
    ]
    assert time.monotonic() - start < 8.0


@pytest.mark.parametrize(
    ("what", "failure"),
    [
        ("raise", "ValueError: no"),
        ("rude", "Rude: rude"),
        ("exit", "SystemExit: 0"),
        ("interrupt", "KeyboardInterrupt: "),
    ],
)
def test_exceptions_of_any_kind_are_failures(pool: WorkerPool, what: str, failure: str) -> None:
    """BaseException, SystemExit and KeyboardInterrupt raised by graded code."""
    assert pool.map([("a",), (what,), ("b",)], 10.0) == [
        CallResult("a", None),
        CallResult(None, failure),
        CallResult("b", None),
    ]


def test_dying_worker_is_replaced(pool: WorkerPool) -> None:
    results = pool.map([("die",), ("a",), ("die",), ("b",)], 10.0)
    assert [result.failure for result in results] == ["died", None, "died", None]
    assert pool.map([("c",)], 10.0) == [CallResult("c", None)]


@pytest.mark.parametrize(
    ("what", "failure"),
    [("kill", "died"), ("fork and die", "died"), ("fork", None), ("threads", None)],
)
def test_call_that_kills_forks_or_starts_threads_affects_no_other(
    pool: WorkerPool, what: str, failure: str | None
) -> None:
    """A child does not answer in the worker's place, and does not outlive a dead worker."""
    start = time.monotonic()
    results = pool.map([(what,), ("a",), (what,), ("b",), ("c",)], 20.0)
    assert [result.failure for result in results] == [failure, None, failure, None, None]
    value = what if failure is None else None
    assert [result.value for result in results] == [value, "a", value, "b", "c"]
    assert time.monotonic() - start < 15


def test_worker_killed_while_idle_costs_no_item(pool: WorkerPool) -> None:
    pool.map([("a",), ("b",)], 10.0)
    for worker in pool._workers:
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
    assert pool.map([("a",), ("b",), ("c",)], 10.0) == [CallResult(word, None) for word in "abc"]


def test_item_that_prints_does_not_disturb_the_pool(
    pool: WorkerPool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert pool.map([("print",), ("a",)], 10.0) == [CallResult("print", None), CallResult("a", None)]
    assert capfd.readouterr().out == ""


def test_threads_share_a_pool(pool: WorkerPool) -> None:
    results: dict[str, list[CallResult]] = {}

    def use(name: str) -> None:
        results[name] = pool.map([(f"{name}{index}",) for index in range(8)], 10.0)

    threads = [threading.Thread(target=use, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {name: [CallResult(f"{name}{index}", None) for index in range(8)] for name in "xyz"}


def test_timed_out_item_leaves_no_child_process(tmp_path: Path) -> None:
    """Neither a child nor an orphan in its own session survives."""
    note = tmp_path / "pids"
    pool = WorkerPool(leave_children, num_workers=1)
    assert pool.map([(str(note),)], 8.0) == [CallResult(None, "timeout")]
    pids = [int(pid) for pid in note.read_text().split()]
    assert len(pids) == 2
    assert not [pid for pid in pids if is_running(pid)]
    pool.close()


def test_child_of_a_dead_worker_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    pool = WorkerPool(leave_child_and_die, num_workers=1)
    start = time.monotonic()
    assert pool.map([(str(note),)], 30.0) == [CallResult(None, "died")]
    assert time.monotonic() - start < 20  # The child's copy of the connection does not hide the death.
    (pid,) = [int(pid) for pid in note.read_text().split()]
    assert not is_running(pid)
    pool.close()


def test_close_ends_the_workers() -> None:
    pool = WorkerPool(act, num_workers=2)
    pool.map([("a",), ("b",)], 10.0)
    pids = [worker.process.pid for worker in pool._workers]
    assert len(pids) == 2
    assert set(pids) <= set(descendants(os.getpid()))
    pool.close()
    assert not [pid for pid in pids if is_running(pid)]


@pytest.mark.usefixtures("interruptible")
def test_users_interrupt_stops_the_run() -> None:
    """Ctrl-C ends the run and is not a failure of the graded code."""
    pool = WorkerPool(act, num_workers=1)
    pool.map([("a",)], 10.0)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pool.map([("sleep",)], 30.0)
    timer.join()
    assert pool._workers == []


def test_unimportable_function_is_reported() -> None:
    pool = WorkerPool(act, imports=("no_such_module",), num_workers=1)
    with pytest.raises(RuntimeError, match="no_such_module"):
        pool.map([("a",)], 10.0)
    pool.close()


def test_workers_are_processes_without_torch() -> None:
    ((pid, has_torch), failure) = map_with_timeout(threads_and_modules, [()], timeout_seconds=10.0)[0]
    assert failure is None
    assert int(pid) != os.getpid()
    assert not has_torch


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
