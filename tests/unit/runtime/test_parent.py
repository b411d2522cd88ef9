"""Children end with their parent, however the parent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
print(child.pid, flush=True)
time.sleep(60)
"""
CHILD = """
import sys, time
from titanrl.runtime import parent
{prepare}
parent.end_with_parent(int(sys.argv[1]), forked_by_main_thread={by_main})
print("ready", flush=True)
time.sleep(60)
"""
NO_PIDFD = "import os; del os.pidfd_open"


@pytest.mark.parametrize(
    ("by_main", "prepare", "is_stopped"),
    [(False, "", False), (True, "", True), (False, NO_PIDFD, False)],
    ids=["thread", "kernel", "without pidfd"],
)
def test_child_ends_with_a_killed_parent(by_main: bool, prepare: str, is_stopped: bool) -> None:
    child = CHILD.format(by_main=by_main, prepare=prepare)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = {process.stdout.readline().strip() for _ in range(2)}
        (pid,) = (int(line) for line in lines - {"ready"})
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        assert ends(pid)


def test_child_whose_parent_has_ended_ends_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        pass
    child = CHILD.format(by_main=False, prepare="")
    done = subprocess.run([sys.executable, "-c", child, str(ended.pid)], check=False, timeout=30)
    assert done.returncode == -signal.SIGKILL


POOL = """
import threading, time
from tests.unit.runtime.worker_pool_targets import act
from titanrl.runtime.worker_pool import WorkerPool
pool = WorkerPool(act, num_workers=1)
threading.Thread(target=pool.map, args=([("sleep",)], 60.0), daemon=True).start()
while not (pool._workers and pool._workers[0].item is not None):
    time.sleep(0.01)
print(pool._workers[0].process.pid, flush=True)
time.sleep(60)
"""


def test_worker_of_a_pool_ends_within_its_call_with_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        assert ends(pid)


def ends(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process that is no child of this one ends in time."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False
