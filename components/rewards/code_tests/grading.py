"""Grades one response, in a worker process: it connects the program's sandbox with the tests'. No torch."""

from __future__ import annotations

import ast
import atexit
import contextlib
import json
import marshal
import math
import os
import re
import select
import socket
import struct
import time
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from titanrl.components.rewards.code_tests.statements import Statement, analyse
from titanrl.components.rewards.code_tests.wire import Closed, Encoder, read_frame, write_frame
from titanrl.runtime.sandbox import Isolation, Limits, Sandbox, SandboxedProcess
from titanrl.runtime.sandbox_mounts import base_python

__all__ = ["Grade", "Settings", "extract_program", "grade"]

FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
MAX_INPUT = 8 << 20
"""Characters of a case's input."""
MAX_OUTPUT = 17 << 20
"""Bytes of a script's output."""
EXAMINER_MB = 1024
EXAMINER_CPU_SECONDS = 3600.0
"""CPU time of the process that forks one per response, for its life."""
EXAMINER_SECONDS = 5.0
"""Time for the examiner to notice that a program was killed."""
LEFT_OUT = ("titanrl", "typing", "collections.abc", "__future__")
"""Modules whose imports do not exist, are not needed at run time, or only cost time in a sandbox."""
BOOT = (
    "import marshal,os\n"
    "def read(n):\n"
    " b=b''\n"
    " while len(b)<n:\n"
    "  p=os.read({fd},n-len(b))\n"
    "  if not p: os._exit(0)\n"
    "  b+=p\n"
    " return b\n"
    "exec(marshal.loads(read(int.from_bytes(read(4),'big'))))\n"
    "serve({fd},{packages!r})\n"
)
"""What the interpreter in a sandbox is started with; its code follows on the descriptor."""


class Settings(NamedTuple):
    """Settings of the reward that grading needs."""

    timeout_seconds: float
    memory_mb: int
    partial: bool
    isolation: Isolation
    packages: tuple[str, ...]


class Grade(NamedTuple):
    """The grade of one response."""

    score: float
    weak_tests: int
    """Tests that a program may pass without the right values."""
    num_tests: int
    refused: str = ""
    """Why a test could not be evaluated, although its program may have caused that."""


def extract_program(response: str) -> str:
    """Returns the last fenced block of a response, or the entire response if it has none."""
    blocks = FENCED.findall(response)
    return str(blocks[-1]) if blocks else response


def grade(response: str, reference: str, settings: Settings) -> Grade:
    """Returns the grade of one response; runs in a worker of titanrl.runtime.worker_pool only.

    Args:
        response: the response, which contains the program.
        reference: the reference answer, which contains the tests.
        settings: the reward's settings.

    Raises:
        ValueError: the reference answer contains no tests, or one that cannot be evaluated.
        SandboxError: the sandbox cannot be made.
    """
    end = time.monotonic() + settings.timeout_seconds
    tests = _tests(reference)
    with contextlib.ExitStack() as stack:
        program, link = _start(_sandbox(settings), "driver", stack)
        # A program that does not read must not block this process.
        seconds = math.ceil(settings.timeout_seconds)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, 0))
        source = extract_program(response).encode("utf-8", "surrogatepass")
        try:
            write_frame(link.fileno(), b"P", source)
        except (Closed, OSError):
            return Grade(0.0, 0, len(tests))
        if isinstance(tests[0], Statement):
            passed, refused = _evaluate(program, link, tests, settings, end)
            weak = sum(test.is_weak for test in tests)
        else:
            passed, weak, refused = _run_cases(program, link, tests, settings, end), 0, ""
    share = passed / len(tests)
    return Grade(share if settings.partial else float(share == 1), weak, len(tests), refused)


@lru_cache(maxsize=1024)
def _tests(reference: str) -> list[Any]:
    """Returns the tests of a reference answer: statements, or (stdin, stdout) of each case."""
    value = json.loads(reference)
    tests = value.get("tests") or value.get("cases") if isinstance(value, dict) else None
    if not isinstance(tests, list) or not tests:
        raise ValueError("code_tests needs a reference answer with tests or cases")
    if value.get("tests"):
        if not all(isinstance(test, str) for test in tests):
            raise ValueError("code_tests needs tests that are strings, statements of Python")
        return [analyse(test, value.get("program_names") or ()) for test in tests]
    if not all(isinstance(case, dict) and {"stdin", "stdout"} <= case.keys() for case in tests):
        raise ValueError("code_tests needs cases with stdin and stdout")
    if max(len(str(case["stdin"])) for case in tests) > MAX_INPUT:
        raise ValueError(f"code_tests needs cases whose stdin has at most {MAX_INPUT} characters")
    return [(str(case["stdin"]), str(case["stdout"])) for case in tests]


# ---------------------------------------------------------------------------------------------- sandboxes


@cache
def _sandbox(settings: Settings) -> Sandbox:
    """Returns the sandbox of programs, which this process keeps for its life."""
    limits = Limits(memory_mb=settings.memory_mb, cpu_seconds=settings.timeout_seconds)
    sandbox = Sandbox(limits, isolation=settings.isolation, packages=settings.packages)
    atexit.register(sandbox.close)
    return sandbox


@cache
def _code(name: str) -> bytes:
    """Returns wire.py with one more module as code that needs neither titanrl nor typing."""
    body: list[ast.stmt] = []
    for file in ("wire", name):
        tree = ast.parse(Path(__file__).with_name(f"{file}.py").read_text("utf-8"))
        body += [
            node
            for node in tree.body
            if not (isinstance(node, ast.ImportFrom) and str(node.module).startswith(LEFT_OUT))
        ]
    future = ast.parse("from __future__ import annotations").body
    code = compile(ast.Module(future + body, []), f"<{name}>", "exec", dont_inherit=True, optimize=2)
    data = marshal.dumps(code)
    return len(data).to_bytes(4, "big") + data


def _start(
    sandbox: Sandbox, name: str, stack: contextlib.ExitStack
) -> tuple[SandboxedProcess, socket.socket]:
    """Starts driver.py or examiner.py in a sandbox; returns it, and the dialogue with it."""
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    with theirs:
        boot = BOOT.format(fd=theirs.fileno(), packages=sandbox.path)
        command = [base_python(), "-I", "-S", "-X", "utf8", "-c", boot]
        process = stack.enter_context(sandbox.start(command, pass_fds=[theirs.fileno()]))
    with contextlib.suppress(OSError):  # The reader notices a program that has ended.
        ours.sendall(_code(name))
    return process, ours


class _Examiner:
    """The process that evaluates tests, which is started when it is first needed and after a failure."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._socket: socket.socket | None = None
        self._kind: tuple[str, tuple[str, ...]] | None = None

    def close(self) -> None:
        self._stack.close()
        self._socket = None

    def begin(self, settings: Settings, link: socket.socket, job: bytes) -> socket.socket:
        """Hand over a job and the dialogue with a program; return the socket of the verdicts."""
        kind = (settings.isolation, settings.packages)
        if self._socket is None or self._kind != kind:
            self.close()
            limits = Limits(memory_mb=EXAMINER_MB, cpu_seconds=EXAMINER_CPU_SECONDS)
            sandbox = Sandbox(limits, isolation=settings.isolation, packages=settings.packages)
            self._stack.callback(sandbox.close)
            self._socket = _start(sandbox, "examiner", self._stack)[1]
            self._kind = kind
        socket.send_fds(self._socket, [b"J"], [link.fileno()])
        write_frame(self._socket.fileno(), b"J", job)
        return self._socket


_examiner = _Examiner()
atexit.register(_examiner.close)


# --------------------------------------------------------------------------------------------- statements


def _evaluate(
    program: SandboxedProcess,
    link: socket.socket,
    tests: list[Statement],
    settings: Settings,
    end: float,
) -> tuple[int, str]:
    """Returns the number of statements that pass, and why one could not be evaluated.

    Raises:
        ValueError: a statement passes something to the program that cannot travel.
    """
    job = Encoder().encode(
        (end - time.monotonic(), [tuple(test)[:3] for test in tests], not settings.partial)
    )
    try:
        verdicts = _examiner.begin(settings, link, job)
    except (Closed, OSError):
        _examiner.close()  # It has died since the last response: once more, with a new one.
        verdicts = _examiner.begin(settings, link, job)
    link.close()
    passed, refused = 0, ""
    while True:
        is_killed = program.wait_readable(verdicts.fileno(), end)
        # The tests of a program that was killed end; the examiner has an alarm of its own.
        if is_killed and not select.select([verdicts], [], [], EXAMINER_SECONDS)[0]:
            _examiner.close()
            return passed, refused
        try:
            kind, verdict = read_frame(verdicts.fileno())
        except Closed:
            _examiner.close()
            return passed, refused
        if kind == b"D":
            return passed, refused
        if verdict[:1] == b"R":
            refused = refused or verdict[1:].decode(errors="replace")
        if verdict[:1] == b"U":
            _examiner.close()
            raise ValueError(f"code_tests: {verdict[1:].decode(errors='replace')}")
        passed += verdict == b"1"


# -------------------------------------------------------------------------------------------------- cases


def _run_cases(
    program: SandboxedProcess, link: socket.socket, cases: list[Any], settings: Settings, end: float
) -> int:
    """Returns the number of cases whose output is right."""
    passed = 0
    for stdin, stdout in cases:
        try:
            write_frame(link.fileno(), b"S", stdin.encode("utf-8", "surrogatepass"))
            kind, output = _read_in_time(program, link.fileno(), end)
        except (Closed, OSError):
            return passed
        is_right = kind == b"D" and output[:1] == b"1"
        is_right = is_right and _lines(output[1:].decode("utf-8", "replace")) == _lines(stdout)
        if not is_right and not settings.partial:
            return passed
        passed += is_right
    return passed


def _read_in_time(program: SandboxedProcess, fd: int, end: float) -> tuple[bytes, bytes]:
    """Returns the kind and the content of the next frame.

    Raises:
        OSError: it is too long, or does not arrive in time; the program is killed then.
        Closed: the program has ended.
    """
    data, size = b"", 5
    while len(data) < size:
        if program.wait_readable(fd, end):
            raise TimeoutError
        part = os.read(fd, size - len(data))
        if not part:
            raise Closed
        data += part
        if len(data) == 5:
            size += int.from_bytes(data[1:], "big")
        if size > MAX_OUTPUT:
            raise OSError("a frame that is too long")
    return data[:1], data[5:]


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
