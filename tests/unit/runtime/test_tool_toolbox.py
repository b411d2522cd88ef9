"""Tool calls with limits: each failure is an outcome that the policy reads, and costs its call alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from titanrl.protocols import RolloutRequest
from titanrl.protocols.tools import BadArguments, LiveTool, OpenTool, ToolCall
from titanrl.runtime.tools.table import ToolTable
from titanrl.runtime.tools.toolbox import OUTCOMES, Toolbox, ToolResult, cut

ROW = RolloutRequest([1], 0, 0)


class Live(LiveTool):
    """A tool of given functions."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.functions, self.opened, self.closed = functions, 0, 0
        self.schemas = [{"type": "function", "function": {"name": name}} for name in functions]

    def open(self, row: RolloutRequest) -> OpenTool:
        self.opened += 1
        return OpenTool(self.functions, self.close_session, f"session {self.opened}")

    def close_session(self) -> None:
        self.closed += 1

    def start(self) -> Live:
        return self


def toolbox(max_calls: int = 32, *, limits: Mapping[str, Any] | None = None, **functions: Any) -> Toolbox:
    given = {"timeout_seconds": 5.0, "max_result_chars": 100, **(limits or {})}
    return Toolbox([ToolTable(component=Live(functions), **given)], max_calls=max_calls)


def results(box: Toolbox, *turns: list[ToolCall | str]) -> tuple[list[ToolResult], Mapping[str, int]]:
    async def play() -> tuple[list[ToolResult], Mapping[str, int]]:
        session = await box.open(ROW)
        each = [await session.call(calls) for calls in turns]
        await session.close()
        return [result for turn in each for result in turn], session.outcomes

    return asyncio.run(play())


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


def outcome(function: Callable[..., Any], **limits: Any) -> tuple[str, str]:
    (result,), _ = results(toolbox(limits=limits, f=function), [call("f", a=1)])
    return result.outcome, result.content


def test_results_are_text_or_json() -> None:
    async def later(arguments: Mapping[str, Any]) -> Any:
        return arguments["a"] + 1

    assert outcome(lambda arguments: "as it is") == ("ok", "as it is")
    assert outcome(lambda arguments: {"b": [1.5, None, "ä"]}) == ("ok", '{"b": [1.5, null, "ä"]}')
    assert outcome(
        lambda arguments: {
            1,
        }
    ) == ("ok", '"{1}"')
    assert outcome(later) == ("ok", "2")
    assert outcome(lambda arguments: later(arguments)) == ("ok", "2")
    assert outcome(lambda arguments: "\ud800") == ("ok", "?")


def raises(error: BaseException) -> Callable[[Any], Any]:
    def function(arguments: Any) -> Any:
        raise error

    return function


def raises_later(error: BaseException) -> Callable[[Any], Any]:
    async def function(arguments: Any) -> Any:
        await asyncio.sleep(0)
        raise error

    return function


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("as_error", [raises, raises_later])
@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KeyError("x"), "error", "Error: KeyError: 'x'"),
        (SystemExit(3), "error", "Error: RuntimeError: SystemExit: 3"),
        (KeyboardInterrupt(), "error", "Error: RuntimeError: KeyboardInterrupt: "),
        (StopIteration(4), "error", "Error: RuntimeError: "),
        (asyncio.CancelledError(), "error", "Error: RuntimeError: "),
        (Silent(), "error", "Error: Silent"),
        (BadArguments("a: wrong"), "bad_arguments", "Error: a: wrong"),
    ],
)
def test_exceptions_are_outcomes(as_error: Any, error: BaseException, kind: str, text: str) -> None:
    got, content = outcome(as_error(error))
    assert (got, content[: len(text)]) == (kind, text)


def test_results_that_cannot_be_written_are_errors() -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError("odd")

    loop: list[Any] = []
    loop.append(loop)
    assert outcome(lambda arguments: Odd()) == ("error", "Error: ValueError: odd")
    assert outcome(lambda arguments: loop)[0] == "error"


def test_calls_that_hang_time_out_alone() -> None:
    async def stubborn(arguments: Any) -> None:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    begin = time.monotonic()
    box = toolbox(
        limits={"timeout_seconds": 0.2},
        sync=lambda arguments: time.sleep(0.6),
        stubborn=stubborn,
        quick=lambda arguments: "done",
    )
    each, outcomes = results(box, [call("sync"), call("stubborn"), call("quick")])
    assert [(result.outcome, result.content) for result in each] == [
        ("timeout", "Error: sync took longer than 0.2 s."),
        ("timeout", "Error: stubborn took longer than 0.2 s."),
        ("ok", "done"),
    ]
    assert outcomes["timeout"] == 2
    assert time.monotonic() - begin < 3


def test_a_call_that_was_left_behind_does_not_delay_the_exit() -> None:
    program = """
import asyncio, time
from titanrl.runtime.tools.threads import TimedOut, call_with_timeout
async def main():
    try:
        await call_with_timeout(time.sleep, 60, seconds=0.05)
    except TimedOut as error:
        print(error)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert done.stdout == "took longer than 0.05 s\n", done.stderr


def test_calls_of_one_turn_run_concurrently_and_keep_their_order() -> None:
    barrier = threading.Barrier(3, timeout=4)

    def meet(arguments: Mapping[str, Any]) -> Any:
        barrier.wait()
        time.sleep(0.02 * arguments["n"])
        return arguments["n"]

    each, _ = results(toolbox(meet=meet), [call("meet", n=n) for n in (2, 1, 0)])
    assert [result.content for result in each] == ["2", "1", "0"]


def test_concurrency_of_a_tool_is_limited_over_rollouts() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def count(arguments: Any) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return ""

    box = toolbox(limits={"concurrency": 2}, count=count)

    async def rollout() -> None:
        session = await box.open(ROW)
        await session.call([call("count"), call("count")])

    async def rollouts() -> None:
        await asyncio.gather(*(rollout() for _ in range(4)))

    asyncio.run(rollouts())
    asyncio.run(rollouts())  # In another event loop too.
    assert most == 2


def test_long_results_are_cut_in_the_middle() -> None:
    (result,), outcomes = results(
        toolbox(limits={"max_result_chars": 5}, f=lambda arguments: "abc" + "x" * 2_000_000 + "yz"),
        [call("f")],
    )
    assert result.content == "abc\n[... 2,000,000 characters left out ...]\nyz"
    assert result.is_cut
    assert outcomes == {"ok": 1, "cut": 1, "close_failed": 0}
    assert cut("abcde", 5) == "abcde"
    assert cut("abcdef", 1) == "a\n[... 5 characters left out ...]\n"


def test_calls_that_cannot_be_made_are_outcomes() -> None:
    each, outcomes = results(
        toolbox(4, f=lambda arguments: "1"),
        [call("g"), "this tool call cannot be read: no.", call("f")],
        [call("f"), call("f"), "unreadable"],
    )
    assert [result.outcome for result in each] == [
        "unknown_tool",
        "malformed",
        "ok",
        "ok",
        "over_limit",
        "over_limit",
    ]
    assert each[0].content == "Error: there is no tool 'g'; tools: f."
    assert each[1].content == "Error: this tool call cannot be read: no."
    assert each[4].content == "Error: no calls left, this conversation may make 4."
    assert outcomes["over_limit"] == 2
    assert set(outcomes) <= {*OUTCOMES, "cut", "close_failed"}


def test_each_rollout_has_a_session_that_is_closed() -> None:
    live = Live({"f": lambda arguments: ""})
    box = Toolbox([ToolTable(component=live)])

    async def play() -> list[str]:
        first, second = await box.open(ROW), await box.open(ROW)
        texts = first.observations + second.observations
        await first.close()
        await first.close()
        await second.close()
        return texts

    assert asyncio.run(play()) == ["session 1", "session 2"]
    assert live.closed == 2


def test_two_functions_of_one_name_are_refused() -> None:
    tables = [ToolTable(component=Live({"f": abs})), ToolTable(component=Live({"f": abs}))]
    with pytest.raises(ValueError, match="two functions named 'f'"):
        Toolbox(tables)
