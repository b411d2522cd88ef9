"""How many tests a program passes that the model wrote."""

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
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from titanrl.components.rewards.text import texts
from titanrl.errors import check_range
from titanrl.registry import register
from titanrl.runtime.worker_pool import descendants, map_with_timeout

# No torch at module level: the grading workers import this file.
if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

__all__ = ["CodeTests", "grade", "program_of"]

CHILD = Path(__file__).with_name("child.py")
FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
MARGIN_SECONDS = 10.0
"""Beyond the program's own deadline, for starting processes on a busy machine."""


@register("reward", "code_tests")
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """Returns the fraction of tests that the response's program passes; with partial = false 1 iff all pass.

    The program is the last fenced block of the response, or the whole response without one. The answer is
    JSON: `{"tests": ["assert add(2, 2) == 4", ...]}`, statements that run after the program, or `{"cases":
    [{"stdin": "2 2", "stdout": "4"}, ...]}`, whose output is compared line by line, white space at line ends
    and empty last lines left out.

    Each test runs in a process of its own, in an empty folder and a session of its own, with limits on CPU,
    memory, processes, files and their size; all that it started is killed afterwards. A test passes by a
    token on a private channel: neither printing nor exiting early passes one. This stops the cheats that
    models find, not an attacker: train on code in a container that holds nothing of value and has no
    network.
    """

    language: Literal["python"] = "python"
    """Language of the program."""
    timeout_seconds: float = 10.0
    """Time limit of all tests of one response together, seconds, > 0; tests that don't finish fail."""
    memory_mb: int = 512
    """Address space of the program, MiB, >= 64."""
    partial: bool = True
    """Whether some passed tests give part of the score."""
    failure: float = 0.0
    """Score of a response on which grading itself failed, such as a reference answer without tests."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"), ("text", "answer"))

    def __post_init__(self) -> None:
        check_range(self, "timeout_seconds", "(0, inf)")
        check_range(self, "memory_mb", "[64, inf)")
        check_range(self, "failure", "(-inf, inf)")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32: the score in [0, 1], or failure."""
        from titanrl.ops.scores import filled

        return filled(self.scores(batch), self.failure)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns one score a row, or why grading itself failed."""
        pairs = zip(texts(batch, "response"), texts(batch, "answer"), strict=True)
        settings = (self.timeout_seconds, self.memory_mb, self.partial)
        items = [(*pair, *settings) for pair in pairs]
        outcomes = map_with_timeout(grade, items, timeout_seconds=self.timeout_seconds + MARGIN_SECONDS)
        return [outcome.score for outcome in outcomes]


def program_of(response: str) -> str:
    """Returns the last fenced block of a response, the whole response if there is none."""
    blocks = FENCED.findall(response)
    return str(blocks[-1]) if blocks else response


def grade(response: str, answer: str, seconds: float, memory_mb: int, partial: bool) -> float:
    """Returns the score of one response, in [0, 1]; runs in a worker of titanrl.runtime.worker_pool only.

    Raises:
        ValueError: the answer holds no tests.
    """
    tests = _tests(answer)
    end, passed = time.monotonic() + seconds, 0
    for number, test in enumerate(tests):
        passed += _passes(program_of(response), test, end, memory_mb)
        if not partial and passed <= number:
            return 0.0
    return passed / len(tests)


def _tests(answer: str) -> list[str | dict[str, str]]:
    value = json.loads(answer)
    tests = value.get("tests") or value.get("cases") if isinstance(value, dict) else None
    if not isinstance(tests, list) or not tests:
        raise ValueError("code_tests needs an answer with tests or cases")
    return tests


def _passes(program: str, test: str | dict[str, str], end: float, memory_mb: int) -> bool:
    if end <= time.monotonic():
        return False
    token, statement = secrets.token_hex(16), test if isinstance(test, str) else None
    request = json.dumps({"program": program, "test": statement, "token": token}).encode()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        wanted, output, given = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        verdict = stack.enter_context(tempfile.TemporaryFile())
        for file, content in (
            (wanted, request),
            (given, b"" if isinstance(test, str) else test["stdin"].encode()),
        ):
            file.write(content)
            file.seek(0)
        limits = [str(memory_mb), str(math.ceil(end - time.monotonic()) + 1)]
        child = subprocess.Popen(
            [sys.executable, "-I", str(CHILD), str(wanted.fileno()), str(verdict.fileno()), *limits],
            cwd=folder, env={"HOME": folder, "PATH": os.defpath, "OMP_NUM_THREADS": "1"},
            stdin=given, stdout=output, stderr=subprocess.DEVNULL,
            start_new_session=True, pass_fds=(wanted.fileno(), verdict.fileno()),
        )  # fmt: skip
        try:
            child.wait(end - time.monotonic())
        except subprocess.TimeoutExpired:
            return False
        finally:
            _clear(child)
        if isinstance(test, str):
            verdict.seek(0)
            return verdict.read() == token.encode()
        output.seek(0)
        return _lines(output.read().decode("utf-8", "replace")) == _lines(test["stdout"])


def _clear(child: subprocess.Popen[Any]) -> None:
    """Kills the program and all that it started; orphans have become children of this worker."""
    main: Any = sys.modules["__main__"]
    assert getattr(main.__spec__, "name", "") == "titanrl.runtime.worker", "not in a worker"
    while below := descendants(os.getpid()):
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    child.wait()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
