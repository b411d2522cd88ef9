"""The parent of a command reports each way in which its process ends without a report."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal, sys, time
from titanrl.runtime import status, supervise
supervise.fork(["train", "my file.toml"])
status.update(stage="score", step=2, checkpoint=1)
{body}
"""
SILENTLY = "ended with exit code 0, without finishing or reporting an error"
KILLED = "was killed by SIGKILL (the system ran out of memory?)"
CONTINUE = "continue with: titanrl train 'my file.toml' --resume\n"


def start(body: str) -> subprocess.Popen[str]:
    script = SCRIPT.format(body=body)
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("status.update(end='finished')", 0, ""),
        ("status.update(end='reported'); sys.exit(2)", 2, ""),
        ("status.update(end='reported'); sys.exit(75)", 75, CONTINUE),
        (
            "os._exit(0)",
            70,
            f"the process of this command {SILENTLY}, in stage score of step 2.\n{CONTINUE}",
        ),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            70,
            f"the process of this command {KILLED}, in stage score of step 2.\n{CONTINUE}",
        ),
        (
            "os.abort()",
            70,
            f"the process of this command was killed by SIGABRT, in stage score of step 2.\n{CONTINUE}",
        ),
    ],
)
def test_end_of_the_process_is_reported(body: str, code: int, message: str) -> None:
    process = start(body)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (code, message)


def test_signals_are_passed_on() -> None:
    process = start(
        "signal.signal(signal.SIGUSR1, lambda *_: (status.update(end='reported'), os._exit(75)))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (75, CONTINUE)


def test_process_ends_with_its_killed_parent() -> None:
    process = start("print(os.getpid(), flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    began = time.monotonic()
    process.stdout.read()  # Returns when the child, which holds the other end too, has ended.
    assert time.monotonic() - began < 10
    process.communicate()
