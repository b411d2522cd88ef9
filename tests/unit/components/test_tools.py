"""The built-in tools."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from titanrl.components.tools.calculator import calculate
from titanrl.errors import ConfigError
from titanrl.protocols import RolloutRequest
from titanrl.protocols.tools import ToolCall
from titanrl.registry.decode import build
from titanrl.runtime.sandbox import missing_for_strict
from titanrl.runtime.tools.table import ToolTable
from titanrl.runtime.tools.toolbox import Toolbox, ToolResult

ROW = RolloutRequest([1], 0, 0, text="Buy.", answer="4", columns={"price": 3, "shop": "a"})


def play(table: Mapping[str, Any], *calls: ToolCall, row: RolloutRequest = ROW) -> list[ToolResult]:
    async def session() -> list[ToolResult]:
        opened = await box.open(row)
        results = [(await opened.call([call]))[0] for call in calls]
        await opened.close()
        return [*(ToolResult("", text, "ok") for text in opened.observations), *results]

    box = Toolbox([ToolTable(component=build("tool", table))])
    try:
        return asyncio.run(session())
    finally:
        box.close()


# ----------------------------------------------------------------------------------------- calculator


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(3 + 4) * -2", "-14"),
        ("7 / 2", "3.5"),
        ("6 / 2", "3"),
        ("7 // 2 + 7 % 4", "6"),
        ("2^10 × 3 ÷ 2 − 1", "1535"),
        ("2 ** 100", "1267650600228229401496703205376"),
        ("(-1) ** 100000000001", "-1"),
        ("sqrt(16) + max(1, 2, 3)", "7"),
        ("round(2 / 3, 2)", "0.67"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("floor(pi)", "3"),
        ("1e20", "1e+20"),
    ],
)
def test_calculator_calculates(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("1 / 0", "division by zero"),
        ("9 ** 9 ** 9", "the number has more than 1000 digits"),
        ("(10 ** 999) * (10 ** 999)", "the number has more than 1000 digits"),
        ("10 ** 999 ** 0.9 * (10 ** 999) / 3.0 * 1e308", "too large|Numerical result|more than|out of range"),
        ("(-8) ** 0.5", "the result is no real number"),
        ("2.0 ** 100000", "out of range|too large"),
        ("exp(1000)", "range error"),
        ("__import__('os')", "is not allowed"),
        ("(1).real", "is not allowed"),
        ("[1] * 1000000", "is not allowed"),
        ("'a' * 3", "is not allowed"),
        ("1 if 2 else 3", "is not allowed"),
        ("1 < 2", "is not allowed"),
        ("True + 1", "is not allowed"),
        ("1 << 4000000", "is not allowed"),
        ("sqrt(1, 2)", "takes exactly one argument"),
        ("round(1.5, ndigits=1)", "takes no named arguments"),
        ("round(1, 2.5)", "cannot be interpreted as an integer"),
        ("2 +", "this is no arithmetic expression"),
        ("", "this is no arithmetic expression"),
        ("\x00", "this is no arithmetic expression"),
        ("9" * 5000, "the expression must have at most 1000 characters"),
        ("-" * 500 + "1", "nested at most 60 deep"),
        ("(" * 400 + "1" + ")" * 400, "this is no arithmetic expression"),
    ],
)
def test_calculator_refuses_what_is_no_arithmetic_or_too_large(expression: str, error: str) -> None:
    begin = time.monotonic()
    with pytest.raises((ValueError, ArithmeticError)) as caught:
        calculate(expression)
    assert any(each in str(caught.value) for each in error.split("|")), str(caught.value)
    assert time.monotonic() - begin < 1


def test_calculator_is_a_tool() -> None:
    good, wrong, bad = play(
        {"name": "calculator"},
        ToolCall("calculator", {"expression": "6 * 7"}),
        ToolCall("calculator", {"expression": "1 / 0"}),
        ToolCall("calculator", {"expr": "1"}),
    )
    assert (good.outcome, good.content) == ("ok", "42")
    assert (wrong.outcome, wrong.content) == ("error", "Error: ZeroDivisionError: division by zero")
    assert bad.outcome == "bad_arguments"


# ------------------------------------------------------------------------------ functions and objects

MODULE = '''
import asyncio

def double(n: int) -> int:
    """Double a number.

    Args:
        n: Number.
    """
    return 2 * n

async def later(n: int) -> int:
    """Double a number later.

    Args:
        n: Number.
    """
    await asyncio.sleep(0)
    return 2 * n

def undocumented(n: int) -> int:
    return n

class Shop:
    closed = 0

    def __init__(self):
        self.items = []

    def reset(self, price, **row):
        self.price = price
        return f"The price is {price}; {row['shop']}; {row['answer']}."

    def buy(self, item: str) -> list[str]:
        """Buy an item.

        Args:
            item: Name.
        """
        self.items.append(item)
        return self.items

    def close(self):
        type(self).closed += 1

class Plain:
    def reset(self, shop):
        self.shop = shop

    def name(self) -> str:
        """Return the name of the shop."""
        return self.shop

class Empty:
    pass

number = 3
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"my_tools_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize("name", ["double", "later"])
def test_functions_are_tools(module: str, name: str) -> None:
    good, bad = play(
        {"name": "function", "function": f"{module}:{name}"},
        ToolCall(name, {"n": "4"}),
        ToolCall(name, {"n": "x"}),
    )
    assert (good.outcome, good.content) == ("ok", "8")
    assert bad.outcome == "bad_arguments"
    assert bad.content.startswith("Error: n: Input should be a valid integer")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("undocumented", "has no docstring"),
        ("nothing", "cannot be imported: AttributeError"),
        ("number", "must be a function, got int"),
    ],
)
def test_wrong_functions_are_errors_of_the_table(module: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build("tool", {"name": "function", "function": f"{module}:{name}"})
    assert message in str(caught.value)


def test_objects_have_a_state_per_rollout(module: str) -> None:
    table = {"name": "toolset", "factory": f"{module}:Shop"}
    for _ in range(2):
        greeting, first, second = play(
            table, ToolCall("buy", {"item": "tea"}), ToolCall("buy", {"item": "milk"})
        )
        assert greeting.content == "The price is 3; a; 4."
        assert (first.content, second.content) == ('["tea"]', '["tea", "milk"]')
    import importlib

    assert importlib.import_module(module).Shop.closed == 4  # Two for the schemas.


def test_reset_gets_the_columns_that_it_names(module: str) -> None:
    (result,) = play({"name": "toolset", "factory": f"{module}:Plain"}, ToolCall("name", {}))
    assert result.content == "a"


def test_objects_without_tools_are_refused(module: str) -> None:
    with pytest.raises(ValueError, match="without public methods that have a docstring"):
        build("tool", {"name": "toolset", "factory": f"{module}:Empty"}).start()


# ------------------------------------------------------------------------------------ Python programs

PYTHON = {"name": "python", "timeout_seconds": 3.0, "isolation": "process"}


@pytest.mark.slow
def test_programs_run_in_the_sandbox() -> None:
    calls = [
        ToolCall("python", {"code": code})
        for code in (
            "x = 3\nprint('a')\nx * 2",
            "x",
            "def f():\n    return 1 / 0\nf()",
            "import sys\nprint('b')\nsys.exit(3)",
            "1 +",
            "import time\nprint('c', flush=True)\ntime.sleep(30)",
        )
    ]
    results = play({**PYTHON, "timeout_seconds": 1.0}, *calls)
    assert [result.outcome for result in results] == ["ok"] * 5 + ["timeout"]
    assert results[0].content == "a\n6\n"
    assert results[1].content == "line 1 in <module>\nNameError: name 'x' is not defined\n"
    assert results[2].content == "line 3 in <module>\nline 2 in f\nZeroDivisionError: division by zero\n"
    assert results[3].content == "b\n\n[exit status 3]"
    assert results[4].content.endswith("SyntaxError: invalid syntax\n")
    assert results[5].content == (
        "Error: TimeoutError: the program took longer than 1 s; output until then:\nc\n"
    )


def test_strict_sandbox_hides_the_machine() -> None:
    if missing_for_strict():
        pytest.skip(missing_for_strict())
    (result,) = play(
        {**PYTHON, "isolation": "strict"},
        ToolCall("python", {"code": f"import os\nos.path.exists({str(Path(__file__))!r}), os.getpid()"}),
    )
    assert result.content.startswith("(False, ")


def test_limit_of_a_program_is_that_of_its_table() -> None:
    table = ToolTable(component=build("tool", PYTHON), timeout_seconds=1.0)
    assert table.timeout_seconds == 13.0


# ---------------------------------------------------------------------------------------- MCP servers

SERVER = '''
import os, sys, time
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("test")

@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no luck")

@server.tool()
def variable(name: str) -> str:
    """Read a variable."""
    return os.environ.get(name, "unset")

@server.tool()
def wait() -> str:
    """Wait."""
    time.sleep(30)
    return ""

@server.tool()
def leave() -> str:
    """Leave."""
    os._exit(1)

if sys.argv[1:]:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run()
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("server") / "server.py"
    path.write_text(SERVER)
    return [sys.executable, str(path)]


@pytest.mark.slow
def test_tools_of_an_mcp_server_over_stdio(server: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    monkeypatch.setenv("MY_OTHER", "secret")
    settings = {"command": server, "environment": {"MODE": "test"}, "pass_variables": ["MY_KEY"]}
    added, wrong, failed, key, mode, other = play(
        {"name": "mcp", **settings},
        ToolCall("add", {"a": 2, "b": 3}),
        ToolCall("add", {"a": "two", "b": 3}),
        ToolCall("fail", {}),
        *(ToolCall("variable", {"name": name}) for name in ("MY_KEY", "MODE", "MY_OTHER")),
    )
    assert (added.outcome, added.content) == ("ok", "5")
    assert wrong.outcome == "error"
    assert failed.outcome == "error"
    assert "no luck" in failed.content
    assert [each.content for each in (key, mode, other)] == ["secret", "test", "unset"]


@pytest.mark.slow
def test_an_mcp_server_that_ends_is_started_again(server: list[str]) -> None:
    left, added = play(
        {"name": "mcp", "command": server, "tools": ["leave", "add"]},
        ToolCall("leave", {}),
        ToolCall("add", {"a": 2, "b": 3}),
    )
    assert left.outcome == "error"
    assert (added.outcome, added.content) == ("ok", "5")


@pytest.mark.slow
def test_tools_of_an_mcp_server_over_http(server: list[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*server, str(port)], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        table = {"name": "mcp", "url": f"http://127.0.0.1:{port}/mcp", "tools": ["add"]}
        added, unknown = play(table, ToolCall("add", {"a": 2, "b": 3}), ToolCall("wait", {}))
    finally:
        process.kill()
        process.wait()
    assert (added.outcome, added.content) == ("ok", "5")
    assert unknown.outcome == "unknown_tool"
    with pytest.raises(ConfigError, match="tool 'mcp' cannot use the server 'http:"):
        build("tool", table).start()


@pytest.mark.slow
def test_mcp_calls_that_hang_time_out_and_delay_no_end(server: list[str]) -> None:
    box = Toolbox(
        [ToolTable(component=build("tool", {"name": "mcp", "command": server}), timeout_seconds=0.5)]
    )

    async def hang() -> str:
        session = await box.open(ROW)
        return (await session.call([ToolCall("wait", {})]))[0].outcome

    try:
        assert asyncio.run(hang()) == "timeout"
    finally:
        begin = time.monotonic()
        box.close()
    assert time.monotonic() - begin < 12


@pytest.mark.slow
def test_mcp_servers_that_cannot_be_used_are_errors(server: list[str]) -> None:
    with pytest.raises(ConfigError, match="names 'ad', which the server does not have; did you mean 'add'"):
        build("tool", {"name": "mcp", "command": server, "tools": ["ad"]}).start()
    command = [sys.executable, "-c", "pass"]
    with pytest.raises(ConfigError, match="tool 'mcp' cannot use the server"):
        build("tool", {"name": "mcp", "command": command, "start_seconds": 5.0}).start()
    for table in ({}, {"command": ["a"], "url": "http://127.0.0.1:1"}):
        with pytest.raises(ConfigError, match="needs either command or url"):
            build("tool", {"name": "mcp", **table})
