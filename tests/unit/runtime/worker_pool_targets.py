"""Functions that tests/unit/runtime/test_worker_pool.py runs in workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


class Rude(BaseException):
    """Not an Exception, like some libraries' timeouts."""


def act(what: str) -> str:
    """Behave like a faulty grader, then return the argument."""
    match what:
        case "sleep":
            time.sleep(60)
        case "spin":
            while True:
                pass
        case "tower":
            return str(5 ** (5 ** (5 ** (5**5))))
        case "raise":
            raise ValueError("no")
        case "rude":
            raise Rude("rude")
        case "exit":
            sys.exit(0)
        case "interrupt":
            raise KeyboardInterrupt
        case "die":
            os._exit(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fork":
            os.fork()  # The child returns from this function too.
        case "fork and die":
            if os.fork() == 0:
                os.setsid()
                time.sleep(60)  # It holds the connection of the dead worker.
            os._exit(0)
        case "threads":
            for _ in range(20):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        case "print":
            print("noise")
    return what


def leave_children(note: str) -> str:
    """Start a child and, from a session of its own, an orphan; write their pids and hang."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    # The process in the middle ends at once, so its child becomes an orphan, as daemons do.
    script = "import subprocess as s, sys; "
    script += "print(s.Popen(sys.argv[1:], start_new_session=True, stdout=s.DEVNULL).pid)"
    command = [sys.executable, "-c", script, sys.executable, "-c", "import time; time.sleep(60)"]
    orphan = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=30)
    with open(note, "w") as file:
        file.write(f"{child.pid} {orphan.stdout.strip()}")
    time.sleep(60)
    return note


def threads_and_modules() -> tuple[str, bool]:
    """Return the process id and whether torch is imported."""
    return str(os.getpid()), "torch" in sys.modules


def leave_child_and_die(note: str) -> None:
    """Fork a child into a session of its own, where it holds this process's pipes, and exit."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
    time.sleep(0.2)
    children = [
        path.parent.name for path in Path("/proc").glob("[0-9]*/stat") if _parent(path) == os.getpid()
    ]
    Path(note).write_text(" ".join(children))
    os._exit(0)


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1
