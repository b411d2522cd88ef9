"""Fraction of the tests that a generated program passes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from titanrl.components.rewards.text import texts
from titanrl.registry import Range, register
from titanrl.runtime.worker_pool import descendants, map_with_timeout

# No torch at module level: the grading workers import this file.
if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

__all__ = ["CodeTests", "extract_program", "grade"]

CHILD = Path(__file__).with_name("child.py")
FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
MARGIN_SECONDS = 10.0
"""Time beyond the program's own limit, for starting processes on a busy machine."""


@register("reward", "code_tests")
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """Fraction of tests that the response's program passes; with partial = false, 1 if all pass, else 0.

    The program is the last fenced block of the response, or the entire response if it has none. The
    reference answer is JSON: `{"tests": ["assert add(2, 2) == 4", ...]}`, statements that run after the
    program, or `{"cases": [{"stdin": "2 2", "stdout": "4"}, ...]}`, whose output is compared line by line,
    ignoring white space at line ends and empty lines at the end.

    Each test runs in its own process, in an empty folder and its own session, with limits on CPU time,
    memory, processes, open files and file size; all processes that it started are killed afterwards. A test
    passes by writing a token to a private channel, so neither printing nor exiting early passes it. This
    stops the exploits that models find, not an attacker: train on code in a container without secrets and
    without network access.
    """

    language: Literal["python"] = "python"
    """Language of the program."""
    timeout_seconds: Annotated[float, Range("(0, inf)")] = 10.0
    """Time limit for all tests of one response together, seconds; unfinished tests fail."""
    memory_mb: Annotated[int, Range("[64, inf)")] = 512
    """Address space of the program, MiB."""
    partial: bool = True
    """Give partial credit for some passed tests."""
    failure_score: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Score of a response whose grading itself failed, for example because the reference answer has no
    tests."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"), ("text", "answer"))

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32: the score in [0, 1], or failure_score."""
        from titanrl.ops.scores import fill_missing_scores

        return fill_missing_scores(self.scores(batch), self.failure_score)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns the score of each row, or the reason why grading itself failed."""
        pairs = zip(texts(batch, "response"), texts(batch, "answer"), strict=True)
        settings = (self.timeout_seconds, self.memory_mb, self.partial)
        items = [(*pair, *settings) for pair in pairs]
        outcomes = map_with_timeout(grade, items, timeout_seconds=self.timeout_seconds + MARGIN_SECONDS)
        return [outcome.score for outcome in outcomes]


def extract_program(response: str) -> str:
    """Returns the last fenced block of a response, or the entire response if it has none."""
    blocks = FENCED.findall(response)
    return str(blocks[-1]) if blocks else response


def grade(response: str, reference: str, seconds: float, memory_mb: int, partial: bool) -> float:
    """Returns the score of one response, in [0, 1]; runs in a worker of titanrl.runtime.worker_pool only.

    Args:
        response: the response, which contains the program.
        reference: the reference answer, which contains the tests.
        seconds: time limit for all tests together.
        memory_mb: address space of the program, MiB.
        partial: give partial credit for some passed tests.

    Raises:
        ValueError: the reference answer contains no tests.
    """
    tests = _tests(reference)
    end, num_passed = time.monotonic() + seconds, 0
    for index, test in enumerate(tests):
        num_passed += _passes(extract_program(response), test, end, memory_mb)
        if not partial and num_passed <= index:
            return 0.0
    return num_passed / len(tests)


def _tests(reference: str) -> list[str | dict[str, str]]:
    value = json.loads(reference)
    tests = value.get("tests") or value.get("cases") if isinstance(value, dict) else None
    if not isinstance(tests, list) or not tests:
        raise ValueError("code_tests needs a reference answer with tests or cases")
    return tests


def _passes(program: str, test: str | dict[str, str], end: float, memory_mb: int) -> bool:
    if end <= time.monotonic():
        return False
    token, statement = secrets.token_hex(16), test if isinstance(test, str) else None
    request = json.dumps({"program": program, "test": statement, "token": token}).encode()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        request_file, output, stdin = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        result = stack.enter_context(tempfile.TemporaryFile())
        for file, content in (
            (request_file, request),
            (stdin, b"" if isinstance(test, str) else test["stdin"].encode()),
        ):
            file.write(content)
            file.seek(0)
        limits = [str(memory_mb), str(math.ceil(end - time.monotonic()) + 1)]
        child = subprocess.Popen(
            [sys.executable, "-I", str(CHILD), str(request_file.fileno()), str(result.fileno()), *limits],
            cwd=folder,
            env={"HOME": folder, "PATH": os.defpath, "OMP_NUM_THREADS": "1"},
            stdin=stdin,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(request_file.fileno(), result.fileno()),
        )
        try:
            child.wait(end - time.monotonic())
        except subprocess.TimeoutExpired:
            return False
        finally:
            _kill_all(child)
        if isinstance(test, str):
            result.seek(0)
            return result.read() == token.encode()
        output.seek(0)
        return _lines(output.read().decode("utf-8", "replace")) == _lines(test["stdout"])


def _kill_all(child: subprocess.Popen[Any]) -> None:
    """Kills the program and all its descendants; orphans have become children of this worker."""
    main: Any = sys.modules["__main__"]
    assert getattr(main.__spec__, "name", "") == "titanrl.runtime.worker", "not in a worker"
    while pids := descendants(os.getpid()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    child.wait()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
