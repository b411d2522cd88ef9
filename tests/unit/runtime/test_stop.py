"""Signals become requests to stop; a second one, or the end of the time, ends the process at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

pytestmark = pytest.mark.slow

LISTENING = """
import hashlib, signal, sys, time
from titanrl.runtime import status, stop
def compute():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # Minutes in C, in which no Python handler runs.
def wait():
    print("ready", flush=True)
    while not stop.requested():
        time.sleep(0.01)
status.update(stage="update", step=3)
with stop.listening({seconds}, on_request=lambda reason: print("asked by", reason, flush=True)):
    {body}
"""


def run(
    body: str, signals: Sequence[tuple[signal.Signals, float]], *, seconds: float = 60
) -> tuple[int, str]:
    """Returns the exit code and the output of a listening process that gets signals after pauses."""
    script = LISTENING.format(seconds=seconds, body=body.replace("\n", "\n    "))
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # As in a terminal: a process that runs in the background of a script ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number, pause in signals:
            time.sleep(pause)
            process.send_signal(number)
        return process.wait(timeout=20), process.stdout.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_first_signal_is_a_request(number: signal.Signals) -> None:
    code, output = run("wait()\nprint(stop.requested(), stop.forced_code())", [(number, 0)])
    assert code == 0
    assert output == f"asked by {number.name}\n{number.name} {128 + number}\n"


def test_signal_abandons_work_that_may_be_abandoned() -> None:
    body = "with stop.abandonable():\n    print('ready', flush=True)\n    time.sleep(60)"
    code, output = run(body, [(signal.SIGTERM, 0)])
    assert code == 1
    assert "StopRequested: nothing needed saving." in output


def test_request_raises_at_the_next_abandonable_work_only() -> None:
    body = (
        "wait()\n"
        "with stop.completing(), stop.abandonable():\n    print('completed')\n"
        "with stop.abandonable():\n    print('abandoned')"
    )
    code, output = run(body, [(signal.SIGTERM, 0)])
    assert code == 1
    assert "completed" in output
    assert "\nabandoned\n" not in output


def test_second_signal_ends_a_process_that_computes_at_once() -> None:
    code, output = run("compute()", [(signal.SIGTERM, 0), (signal.SIGINT, 1.2)])
    assert code == 128 + signal.SIGINT
    assert "ended at once by a second signal, SIGINT, in stage update of step 3" in output


def test_signals_of_one_moment_are_one_request() -> None:
    numbers = [(signal.SIGTERM, 0.0), (signal.SIGTERM, 0.2), (signal.SIGUSR1, 0.2)]
    code, output = run("wait()\ntime.sleep(1)", numbers)
    assert code == 0
    assert output == "asked by SIGTERM\n"


def test_end_of_the_time_ends_a_process_that_computes() -> None:
    code, output = run("compute()", [(signal.SIGUSR1, 0)], seconds=0.3)
    assert code == 128 + signal.SIGUSR1
    assert "did not stop within [run] stop_seconds = 0.3, in stage update of step 3" in output
