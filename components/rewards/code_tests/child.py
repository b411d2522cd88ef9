"""The process that runs one test of a program that a model wrote; standard library only.

Arguments: fd of the request, fd for the verdict, memory in MiB, seconds of CPU. The verdict is the request's
token, written only when the test's last statement is done: neither printing nor leaving early makes a test
pass.
"""

from __future__ import annotations

import json
import os
import resource
import sys

__all__: list[str] = []

FILE_BYTES = 16 << 20
OPEN_FILES = 64


def _limit(memory_mb: int, cpu_seconds: int) -> None:
    memory = memory_mb << 20
    for what, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        # No further process; root is not bound by this, so all that is left over is killed afterwards too.
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(what, (value, value))


def main(request_fd: int, verdict_fd: int, memory_mb: int, cpu_seconds: int) -> None:
    with os.fdopen(request_fd, "rb") as file:
        request = json.load(file)
    _limit(memory_mb, cpu_seconds)
    del sys.argv[1:]
    # A script with input is run as one; a program under test is only defined.
    namespace = {"__name__": "__main__" if request["test"] is None else "solution"}
    exec(compile(request["program"], "<program>", "exec"), namespace)
    if request["test"] is not None:
        exec(compile(request["test"], "<test>", "exec"), namespace)
        os.write(verdict_fd, request["token"].encode())
        os._exit(0)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
