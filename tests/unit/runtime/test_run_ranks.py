"""The launcher of ranks: exit codes, reports of ranks that end in silence, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

LAUNCHER = """
import sys
from titanrl.runtime.launch import run_ranks
sys.exit(run_ranks(2, ["train", "my.toml"], program=["-c", sys.argv[1]]))
"""
RANK = """
import os, signal, sys, time
from titanrl.runtime import status
from titanrl.runtime.launch import LAUNCHER, STATUS
from titanrl.runtime.parent import end_with_parent
end_with_parent(int(os.environ[LAUNCHER]), forked_by_main_thread=True)
status.attach(int(os.environ[STATUS]))
status.update(stage="score", step=3, checkpoint=2)
rank = int(os.environ["RANK"])
def stop(number, frame):
    status.update(end="reported")
    sys.exit(75)
signal.signal(signal.SIGUSR1, stop)
print(os.getpid(), flush=True)
{body}
status.update(end="finished")
"""
CONTINUE = "continue with: titanrl train my.toml --nproc=2 --resume\n"


def start(body: str, temporary: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, RANK.format(body=body)],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("", 0, ""),
        ("if rank: status.update(end='reported'); sys.exit(2)", 2, ""),
        (
            "time.sleep(60 * (1 - rank)); os._exit(0)",
            70,
            "rank 1 on HOST (process PID) ended with exit code 0, ",
        ),
        (
            "time.sleep(60 * rank); os.kill(os.getpid(), signal.SIGKILL)",
            70,
            "rank 0 on HOST (process PID) was killed by SIGKILL ",
        ),
    ],
    ids=["success", "mistake", "exit", "kill"],
)
def test_command_ends_as_its_first_rank_that_fails(
    tmp_path: Path, body: str, code: int, message: str
) -> None:
    began = time.monotonic()
    process = start(body, tmp_path)
    output, errors = process.communicate(timeout=55)
    assert time.monotonic() - began < 50, "it waited for the sleeping rank"
    assert process.returncode == code, errors
    if message:
        assert any(
            errors.startswith(message.replace("HOST", os.uname().nodename).replace("PID", pid))
            for pid in output.split()
        )
        assert errors.endswith(f"in stage score of step 3; the other ranks are ended.\n{CONTINUE}")
    else:
        assert errors == ""
    assert [*tmp_path.iterdir()] == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in output.split())


def test_signals_reach_every_rank(tmp_path: Path) -> None:
    process = start("time.sleep(60)", tmp_path)
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (75, CONTINUE)


def test_ranks_end_with_a_killed_launcher(tmp_path: Path) -> None:
    process = start("time.sleep(60)", tmp_path)
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()
    process.kill()
    began = time.monotonic()
    process.communicate(timeout=30)  # Until the ranks, which hold the pipes too, have ended.
    assert time.monotonic() - began < 10
