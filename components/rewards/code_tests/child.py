"""Process that runs one test of a generated program; standard library only.

Arguments: file descriptor of the request, file descriptor of the result, memory in MiB, CPU seconds. The
result is the request's token, written only after the test's last statement has run, so neither printing nor
exiting early makes a test pass.
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
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        # No child processes; root is exempt from this limit, so the parent also kills all descendants.
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (value, value))


def main(request_fd: int, result_fd: int, memory_mb: int, cpu_seconds: int) -> None:
    with os.fdopen(request_fd, "rb") as file:
        request = json.load(file)
    _limit(memory_mb, cpu_seconds)
    del sys.argv[1:]
    # A program with input runs as a script; a program under test is only defined.
    namespace = {"__name__": "__main__" if request["test"] is None else "solution"}
    exec(compile(request["program"], "<program>", "exec"), namespace)
    if request["test"] is not None:
        exec(compile(request["test"], "<test>", "exec"), namespace)
        os.write(result_fd, request["token"].encode())
        os._exit(0)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
