"""Kills runs at random moments, resumes them, and compares their metrics with those of a whole run.

    python -m tools.kill_runs EXPERIMENT --kills 30 --nproc 2

Each kill sends SIGTERM, SIGINT, SIGUSR1, SIGKILL or SIGSTOP to the command or to one of its processes,
after a random time. The command is then called again, with --resume once there is a checkpoint. Runs are
repeated under new names until all kills are done, and each run's metrics must equal those of the whole run
bitwise; times aside. The table says what each kill cost: the exit code, the seconds until every process had
ended, the steps that were repeated, and what was left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL, signal.SIGSTOP)
EXPECTED = {75, 70, 0, 130, 138, 143, *(-number for number in NUMBERS)}
"""Exit codes of a run that was hit: stopped, lost a process, at its end, or killed before it listened."""
LIMIT_SECONDS = 300.0


def command(arguments: argparse.Namespace, name: str, *, resume: bool) -> list[str]:
    words = ["train", arguments.experiment, f"--nproc={arguments.nproc}"]
    words += [
        f"--set={each}" for each in (*arguments.set, f"run.name={name}", f"run.folder={arguments.folder}")
    ]
    words += ["--set=run.stall_seconds=4"]
    return [sys.executable, "-m", "titanrl", *words, *(["--resume"] if resume else [])]


def prepared(arguments: argparse.Namespace, name: str) -> list[str]:
    """Return the command that starts or resumes a run; one without a checkpoint is moved out of the way."""
    run = Path(arguments.folder) / name
    resume = checkpoint(run) > 0
    if not resume and run.exists():
        run.rename(run.with_name(f"left-{time.time_ns()}"))  # Else the new run would get a name of its own.
    return command(arguments, name, resume=resume)


def start(words: list[str], log: Path, temporary: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            words,
            stdout=output,
            stderr=output,
            env=os.environ | {"TMPDIR": str(temporary)},
            start_new_session=True,
        )


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: each for key, each in line.items() if not key.startswith("time/")} for line in lines]


def steps(run: Path) -> int:
    try:
        return max((line["step"] for line in metrics(run)), default=0)
    except (OSError, ValueError):
        return 0


def checkpoint(run: Path) -> int:
    return max(
        (int(each.parent.name[5:]) for each in run.glob("checkpoints/step-*/manifest.json")), default=0
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_once(
    arguments: argparse.Namespace, name: str, source: random.Random, log: Path, temporary: Path
) -> dict[str, Any] | None:
    """Start or resume a run, hit it, and return what happened; None if it ended before."""
    run = Path(arguments.folder) / name
    process = start(prepared(arguments, name), log, temporary)
    wait = source.uniform(0, arguments.seconds)
    try:
        process.wait(wait)
        assert process.returncode == 0, log.read_text()[-3000:]
        return None
    except subprocess.TimeoutExpired:
        pass
    number = source.choice(NUMBERS)
    everyone = [process.pid, *descendants(process.pid)]
    # Only rank processes are stopped: the command itself is not watched.
    targets = everyone[1:] if number == signal.SIGSTOP and len(everyone) > 2 else everyone
    # A rank that has given no sign of life yet is waited for over ten minutes.
    if number == signal.SIGSTOP and (len(everyone) <= 2 or not steps(run)):
        number = signal.SIGKILL
    target = source.choice(targets)
    at, began = steps(run), time.monotonic()
    os.kill(target, number)
    while any(alive(pid) for pid in everyone) and time.monotonic() - began < LIMIT_SECONDS:
        process.poll()
        time.sleep(0.02)
    seconds = time.monotonic() - began
    left = [pid for pid in everyone if alive(pid)]
    process.poll()
    return {
        "run": name,
        "signal": number.name,
        "target": "command" if target == process.pid else f"process {everyone.index(target)}",
        "after": round(wait, 1),
        "code": process.returncode,
        "seconds": round(seconds, 1),
        "step": at,
        "checkpoint": checkpoint(run),
        "lost steps": max(at - checkpoint(run), 0),
        "processes left": len(left),
        "files left": sum("torchinductor" not in each.name for each in temporary.iterdir()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="longest time before a kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default="runs/kills")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    source, folder = random.Random(arguments.seed), Path(arguments.folder)
    folder.mkdir(parents=True)
    log, temporary = folder / "log.txt", folder / "temporary"
    temporary.mkdir()
    assert start(command(arguments, "whole", resume=False), log, temporary).wait() == 0, log.read_text()
    whole, rows, different, number = metrics(folder / "whole"), list[dict[str, Any]](), 0, 0
    while len(rows) < arguments.kills:
        name, number = f"killed{number}", number + 1
        while len(rows) < arguments.kills:
            row = kill_once(arguments, name, source, log, temporary)
            if row is None:
                break
            rows.append(row)
            print(json.dumps(row), flush=True)
        else:
            assert start(prepared(arguments, name), log, temporary).wait() == 0, log.read_text()[-3000:]
        is_same = metrics(folder / name) == whole
        different += not is_same
        print(
            f"{name}: metrics {'equal' if is_same else 'DIFFERENT FROM'} those of the whole run", flush=True
        )
    print("\n| signal | kills | exit codes | longest end, s | lost steps | left |\n|---|---|---|---|---|---|")
    for each in sorted({row["signal"] for row in rows}):
        own = [row for row in rows if row["signal"] == each]
        codes = ", ".join(str(code) for code in sorted({row["code"] for row in own}))
        left = sum(row["processes left"] for row in own), max(row["files left"] for row in own)
        print(
            f"| {each} | {len(own)} | {codes} | {max(row['seconds'] for row in own)} | "
            f"{sum(row['lost steps'] for row in own)} | {left[0]} processes, {left[1]} files |"
        )
    unexpected = [row for row in rows if row["code"] not in EXPECTED]
    print(f"{different} of {number} runs differ; {len(unexpected)} unexpected exit codes")
    return int(bool(different or unexpected))


if __name__ == "__main__":
    sys.exit(main())
