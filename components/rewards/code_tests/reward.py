"""Fraction of the tests that a generated program passes."""

from __future__ import annotations

import atexit
import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from titanrl.components.rewards.code_tests.grading import Settings, grade
from titanrl.components.rewards.text import texts
from titanrl.errors import ConfigError
from titanrl.registry import Range, register
from titanrl.runtime.sandbox import missing_for_strict, remove_leftovers
from titanrl.runtime.sandbox_mounts import mounts
from titanrl.runtime.worker_pool import map_with_timeout, max_map_seconds

# No torch at module level: the grading workers import this package.
if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

__all__ = ["CodeTests"]

UNPROTECTED = (
    "code_tests: isolation = 'process' does not protect this machine: generated programs can read and write "
    "files, use the network and stop processes of their user; use 'strict', or a container for nothing else."
)
MARGIN_SECONDS = 10.0
"""Time beyond the program's own limit, for starting processes on a busy machine."""


@register("reward", "code_tests")
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """Fraction of tests that the response's program passes; with partial = false, 1 if all pass, else 0.

    The program is the last fenced block of the response, or the entire response if it has none. The
    reference answer is JSON: `{"tests": ["assert add(2, 2) == 4", ...]}`, statements that call the program,
    or `{"cases": [{"stdin": "2 2", "stdout": "4"}, ...]}`, whose output is compared line by line, ignoring
    white space at line ends and empty lines at the end; the program must run to its end or call sys.exit(0).

    Each test runs the program again, in a process of its own. Statements are evaluated in another sandbox:
    only arguments and results travel, as plain data, and results are compared as exact builtin values.
    Expected values never reach the program's process. A test that a program may pass without them, such as
    `decode(encode(x)) == x`, is evaluated and counted in a warning; one that cannot be evaluated this way is
    a failure of that row. [Code rewards](../code-rewards.md) describes the tests, the sandbox and its limits.
    """

    language: Literal["python"] = "python"
    """Language of the program."""
    timeout_seconds: Annotated[float, Range("(0, inf)")] = 10.0
    """Time limit for all tests of one response together, seconds; unfinished tests fail."""
    memory_mb: Annotated[int, Range("[64, 4096]")] = 512
    """Memory of the program, MiB: address space of each process, and memory of all of them together."""
    isolation: Literal["strict", "process"] = "strict"
    """`strict`: a sandbox by bubblewrap without network, files of this machine and other processes; `titanrl
    check` refuses a machine that cannot make one. `process`: limits on time and memory only, no protection of
    files, network and other processes."""
    packages: tuple[str, ...] = ("numpy",)
    """Installed packages that programs and tests may import, with what they require, beside the standard
    library."""
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

    def problems(self) -> list[tuple[str, str]]:
        """Returns the keys that this machine cannot satisfy, each with what is wrong and the remedy."""
        problems = []
        if self.isolation == "strict" and (missing := missing_for_strict()):
            problems.append(
                ("isolation", f"'strict' {missing} Or set isolation = 'process', see its meaning.")
            )
        try:
            mounts(self.packages, 1)
        except ModuleNotFoundError as error:
            problems.append(("packages", f"must be installed: {error}; install or remove it."))
        return problems

    def notices(self) -> list[str]:
        """Returns what a user should know about this reward on this machine."""
        return [UNPROTECTED] if self.isolation == "process" else []

    def max_seconds(self, num_rows: int) -> float:
        """Returns the longest time that scoring ``num_rows`` responses may take, seconds."""
        return max_map_seconds(num_rows, self.timeout_seconds + MARGIN_SECONDS)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns the score of each row, or the reason why grading itself failed.

        Raises:
            ConfigError: this machine cannot make the sandbox.
        """
        for key, text in self.problems():
            raise ConfigError(f"[[reward]] code_tests: {key} {text}")
        for text in self.notices():
            _warn_once("isolation", text)
        pairs = zip(texts(batch, "response"), texts(batch, "answer"), strict=True)
        _clean_up_at_exit()
        settings = Settings(self.timeout_seconds, self.memory_mb, self.partial, self.isolation, self.packages)
        outcomes = map_with_timeout(
            grade,
            [(*pair, settings) for pair in pairs],
            timeout_seconds=self.timeout_seconds + MARGIN_SECONDS,
        )
        grades = [outcome.value for outcome in outcomes if outcome.failure is None]
        if weak := sum(each.weak_tests for each in grades):
            num_tests = sum(each.num_tests for each in grades)
            _warn_once(
                "weak tests",
                f"code_tests: {weak} of the {num_tests} tests of this batch use results of the program on "
                "both sides of a comparison or as arguments; a program can pass such a test without the "
                "right values.",
            )
        if refused := [each.refused for each in grades if each.refused]:
            _warn_once(
                "refused tests",
                f"code_tests: {len(refused)} of the {len(grades)} responses of this batch failed a test that "
                f"could not be evaluated, at first because {refused[0]}.",
            )
        return [outcome.value.score if outcome.failure is None else outcome.failure for outcome in outcomes]


@cache
def _clean_up_at_exit() -> None:
    """Remove what killed workers leave; registered before their pool, so called after it has closed."""
    atexit.register(remove_leftovers)


_warned: set[str] = set()


def _warn_once(subject: str, text: str) -> None:
    """Warn the first time that this process meets a subject."""
    if subject not in _warned:
        _warned.add(subject)
        warnings.warn(text, RuntimeWarning, stacklevel=3)
