"""Execution of tool calls with limits: every outcome, failures too, is a message that the policy reads."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from titanrl.protocols.tools import BadArguments, ToolCall
from titanrl.runtime.tools.threads import TimedOut, call_with_timeout
from titanrl.runtime.worker import error_text

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest
    from titanrl.protocols.tools import LiveTool, OpenTool
    from titanrl.runtime.tools.table import ToolTable

__all__ = ["OUTCOMES", "Outcome", "ToolResult", "ToolSession", "Toolbox", "cut"]

Outcome: TypeAlias = Literal[
    "ok", "malformed", "unknown_tool", "bad_arguments", "error", "timeout", "over_limit"
]

OUTCOMES: Mapping[Outcome, str] = {
    "ok": "The function returned.",
    "malformed": "The response contains a call that cannot be read.",
    "unknown_tool": "No tool has the name.",
    "bad_arguments": "Arguments are missing, unknown or of the wrong type.",
    "error": "The function raised an exception.",
    "timeout": "The call took longer than timeout_seconds.",
    "over_limit": "The rollout had made max_calls calls already.",
}
"""Outcome of a call -> its meaning."""

MAX_ERROR_CHARS = 1000
"""Longest text of an exception."""


class ToolResult(NamedTuple):
    """The result of a call, as the policy reads it."""

    name: str
    """The function; empty for a call that could not be read."""
    content: str
    outcome: Outcome
    is_cut: bool = False
    """Whether the result was too long."""
    seconds: float = 0.0


class _Tool(NamedTuple):
    """An entry of [[environment.tool]], started."""

    live: LiveTool
    table: ToolTable


class Toolbox:
    """The tools of a run. One object serves all rollouts of a process; ``open`` begins a session of one.

    Args:
        tables: the [[environment.tool]] tables, whose tools are started.
        max_calls: largest number of calls in a rollout.

    Raises:
        ValueError: two tools have a function of the same name.
    """

    def __init__(self, tables: Sequence[ToolTable], *, max_calls: int = 32) -> None:
        self.max_calls = max_calls
        self.tools: list[_Tool] = []
        self._slots: WeakKeyDictionary[Any, dict[int, asyncio.Semaphore]] = WeakKeyDictionary()
        try:
            for table in tables:
                self.tools.append(_Tool(table.component.start(), table))
            names = Counter(each["function"]["name"] for each in self.schemas)
            if twice := [name for name, count in names.items() if count > 1]:
                raise ValueError(f"[[environment.tool]] has two functions named {twice[0]!r}; rename one.")
        except BaseException:
            self.close()
            raise

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        """OpenAI schemas of all functions."""
        return [schema for tool in self.tools for schema in tool.live.schemas]

    async def open(self, row: RolloutRequest) -> ToolSession:
        """Return a session with a state of its own.

        Args:
            row: the prompt of the rollout.

        Raises:
            TimedOut: a tool did not open within its time limit.
            Exception: a tool cannot be opened.
        """
        session = ToolSession(self)
        try:
            for tool in self.tools:
                seconds = tool.table.timeout_seconds
                opened = await call_with_timeout(tool.live.open, row, seconds=seconds)
                session.add(tool, opened)
        except BaseException:
            await session.close()
            raise
        return session

    def slots(self, tool: _Tool) -> asyncio.Semaphore:
        """Return the semaphore of a tool's concurrent calls in this event loop."""
        slots = self._slots.setdefault(asyncio.get_running_loop(), {})
        return slots.setdefault(id(tool.live), asyncio.Semaphore(tool.table.concurrency))

    def close(self) -> None:
        """Close all tools."""
        while self.tools:
            self.tools.pop().live.close()


class ToolSession:
    """The tools in one rollout.

    Args:
        toolbox: the tools of the run.
    """

    def __init__(self, toolbox: Toolbox) -> None:
        self.outcomes: Counter[str] = Counter()
        """Number of calls by outcome, and results that were ``cut``."""
        self.num_calls = 0
        """Calls that were made, or could not be read."""
        self.observations: list[str] = []
        """Texts that the tools add to the prompt."""
        self._toolbox = toolbox
        self._functions: dict[str, tuple[_Tool, Callable[[Mapping[str, Any]], Any]]] = {}
        self._closers: list[tuple[Callable[[], Any], float]] = []
        self._rewards: list[tuple[Callable[[], Any], float]] = []

    def add(self, tool: _Tool, opened: OpenTool) -> None:
        """Add a tool that was opened for this rollout."""
        self._functions |= {name: (tool, function) for name, function in opened.functions.items()}
        if opened.close is not None:
            self._closers.append((opened.close, tool.table.timeout_seconds))
        if opened.observation:
            self.observations.append(opened.observation)
        if opened.reward is not None:
            self._rewards.append((opened.reward, tool.table.timeout_seconds))

    async def call(self, calls: Sequence[ToolCall | str]) -> list[ToolResult]:
        """Make the calls of one turn concurrently and return their results in order.

        Args:
            calls: each a call, or the problem of one that could not be read.
        """
        numbered = list(enumerate(calls, self.num_calls))
        self.num_calls += len(numbered)
        results = await asyncio.gather(*(self._result(call, number) for number, call in numbered))
        for result in results:
            self.outcomes[result.outcome] += 1
            self.outcomes["cut"] += result.is_cut
        return list(results)

    async def reward(self) -> float | None:
        """Return the sum of the tools' rewards; None: no tool gives one.

        Raises:
            Exception: a tool raises, or gives no number.
        """
        values = [await call_with_timeout(reward, seconds=seconds) for reward, seconds in self._rewards]
        numbers = [float(value) for value in values if value is not None]
        return sum(numbers) if numbers else None

    async def close(self) -> None:
        """Close the tools of this rollout; what they raise is ignored, because the rollout is over."""
        closers, self._closers = self._closers, []
        tasks = (call_with_timeout(close, seconds=seconds) for close, seconds in closers)
        failures = await asyncio.gather(*tasks, return_exceptions=True)
        self.outcomes["close_failed"] += sum(isinstance(each, BaseException) for each in failures)

    async def _result(self, call: ToolCall | str, number: int) -> ToolResult:
        name = call.name if isinstance(call, ToolCall) else ""
        if number >= self._toolbox.max_calls:
            text = f"Error: no calls left, this conversation may make {self._toolbox.max_calls}."
            return ToolResult(name, text, "over_limit")
        if not isinstance(call, ToolCall):
            return ToolResult("", f"Error: {call}", "malformed")
        if name not in self._functions:
            known = ", ".join(self._functions) or "none"
            return ToolResult(
                name, f"Error: there is no tool {name[:100]!r}; tools: {known}.", "unknown_tool"
            )
        tool, function = self._functions[name]
        async with self._toolbox.slots(tool):
            begin = time.monotonic()
            content, outcome = await _outcome(function, call, tool.table.timeout_seconds)
            seconds = time.monotonic() - begin
        limited = cut(content, tool.table.max_result_chars)
        return ToolResult(name, limited, outcome, limited != content, seconds)


async def _outcome(
    function: Callable[[Mapping[str, Any]], Any], call: ToolCall, seconds: float
) -> tuple[str, Outcome]:
    try:
        result = await call_with_timeout(function, call.arguments, seconds=seconds)
        if not isinstance(result, str):  # A large value takes time as well.
            result = await call_with_timeout(_as_text, result, seconds=seconds)
    except TimedOut:
        return f"Error: {call.name} took longer than {seconds:g} s.", "timeout"
    except TimeoutError as error:  # The tool's own limit.
        return f"Error: {cut(error_text(error), MAX_ERROR_CHARS)}", "timeout"
    except BadArguments as error:
        return f"Error: {cut(str(error), MAX_ERROR_CHARS)}", "bad_arguments"
    except Exception as error:  # Whatever a tool raises is an outcome of its call.
        return f"Error: {cut(error_text(error), MAX_ERROR_CHARS)}", "error"
    # Text that UTF-8 cannot hold cannot be tokenized.
    return result.encode("utf-8", "replace").decode(), "ok"


def _as_text(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


def cut(text: str, max_chars: int) -> str:
    """Return a text, or its begin and its end with a note between them, ``max_chars`` characters in all.

    The note itself is not counted.
    """
    if len(text) <= max_chars:
        return text
    head = (max_chars + 1) // 2
    tail = max_chars - head
    note = f"\n[... {len(text) - max_chars:,} characters left out ...]\n"
    return text[:head] + note + text[len(text) - tail :]
