"""Tools of a server that speaks the Model Context Protocol."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from titanrl.errors import ConfigError, did_you_mean
from titanrl.protocols.tools import LiveTool, OpenTool
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest

__all__ = ["MCP"]

PING_SECONDS = 2.0
"""Time in which a server must answer after a failure; otherwise it is started again."""
CLOSE_SECONDS = 10.0
"""Time of a server to end."""


@register("tool", "mcp")
@dataclass(frozen=True, slots=True, kw_only=True)
class MCP:
    """Tools of an MCP server, which is started once per process of the run or reached by its address.

    Give `command` for a server that speaks over its standard input and output, or `url` for one that speaks
    HTTP. The server lists its tools at the start. All rollouts share it, so a state of its own is common to
    them. A server that ends is started again at the next call.
    """

    command: tuple[str, ...] = ()
    """Program and arguments that start the server: `["python", "my_server.py"]`."""
    url: str | None = None
    """Address of a server: `http://127.0.0.1:8000/mcp`."""
    tools: tuple[str, ...] = ()
    """Names of the tools to offer. Default: all of the server."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the server beside a few safe ones such as PATH."""
    pass_variables: tuple[str, ...] = ()
    """Names of environment variables of this process that the server gets too, such as keys of services."""
    start_seconds: Annotated[float, Range("(0, inf)")] = 30.0
    """Time limit for the start of the server and the list of its tools, seconds."""
    requires: ClassVar[tuple[str, ...]] = ("mcp",)

    def __post_init__(self) -> None:
        if bool(self.command) == (self.url is not None):
            raise ValueError(
                f"needs either command or url, got {'both' if self.command else 'none'} of them."
            )

    def start(self) -> LiveMCP:
        """Connects to the server.

        Raises:
            ConfigError: it cannot be reached, or lacks one of the tools.
        """
        return LiveMCP(self)

    def target(self) -> Any:
        """Returns the server as the client of `mcp` takes it."""
        if self.url is not None:
            return self.url
        from mcp import StdioServerParameters

        missing = [name for name in self.pass_variables if name not in os.environ]
        if missing:
            raise ConfigError(f"pass_variables of tool 'mcp' names {missing[0]}, which is not set; set it.")
        own = {name: os.environ[name] for name in self.pass_variables}
        # The package's own default ignores what pytest or a notebook puts in place of standard error.
        return StdioServerParameters(
            command=self.command[0], args=list(self.command[1:]), env={**self.environment, **own}
        )


class MCPToolError(Exception):
    """The server reported that a call failed."""


class LiveMCP(LiveTool):
    """Live tool of `mcp`."""

    def __init__(self, settings: MCP) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._connection = _Connection(settings)
        listed = {tool.name: tool for tool in self._connection.tools}
        names = settings.tools or tuple(listed)
        for name in names:
            if name not in listed:
                self.close()
                near = did_you_mean(name, listed) or ";"
                raise ConfigError(
                    f"tools of tool 'mcp' names {name!r}, which the server does not have{near} tools: "
                    f"{', '.join(listed) or 'none'}."
                )
        self.schemas = tuple(
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": listed[name].description or "",
                    "parameters": listed[name].input_schema,
                },
            }
            for name in names
        )
        functions: dict[str, Callable[[Mapping[str, Any]], Any]]
        functions = {name: partial(self._call, name) for name in names}
        self._opened = OpenTool(functions)

    def open(self, row: RolloutRequest) -> OpenTool:
        """Returns the functions, which share the server."""
        return self._opened

    def close(self) -> None:
        """Ends the server, or the connection."""
        self._connection.close()

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Coroutine[Any, Any, str]:
        """Begins a call; runs in a thread, because it may start the server again."""
        with self._lock:
            if self._connection.is_over:
                self._connection.close()
                self._connection = _Connection(self._settings)
        return self._connection.call(name, dict(arguments))


class _Connection:
    """A connection in an event loop of its own, because it must begin and end in the same task.

    Args:
        settings: the table.

    Raises:
        ConfigError: the server cannot be reached.
    """

    def __init__(self, settings: MCP) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ending = False
        self._client: Any = None
        ready: Future[list[Any]] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(settings.target(), ready), daemon=True, name="titanrl-mcp"
        )
        self._thread.start()
        server = settings.url or " ".join(settings.command)
        try:
            self.tools = ready.result(settings.start_seconds)
        except Exception as error:  # The client's, the server's, or a time-out.
            self.close()
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise ConfigError(
                f"tool 'mcp' cannot use the server {server!r}: {reason}; start it by hand to see its errors."
            ) from None

    @property
    def is_over(self) -> bool:
        """Whether the server has ended, even if the client is still closing the connection."""
        return self._ending or not self._thread.is_alive()

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the text of a result.

        Raises:
            MCPToolError: the server reports a failure.
            Exception: the connection fails.
        """
        try:
            result = await self._run_there(self._client.call_tool, name, arguments)
        except Exception:
            if await self._has_ended():
                self._end()
            raise
        parts = [_text(block) for block in result.content]
        if not parts and result.structured_content is not None:
            parts = [str(result.structured_content)]
        text = "\n".join(parts)
        if result.is_error:
            raise MCPToolError(text)
        return text

    def close(self) -> None:
        """End the connection, and the server that it started."""
        self._end()
        self._thread.join(CLOSE_SECONDS)

    def _end(self) -> None:
        self._ending = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _has_ended(self) -> bool:
        """Return whether the server no longer answers at all."""
        try:
            await asyncio.wait_for(self._run_there(self._client.list_tools), PING_SECONDS)
        except Exception:
            return True
        return False

    async def _run_there(self, function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        """Return the result of a method of the client, which runs in the connection's event loop."""
        if self._loop.is_closed():
            raise ConnectionError("the server has ended")
        running = asyncio.run_coroutine_threadsafe(function(*arguments), self._loop)
        return await asyncio.wrap_future(running)

    def _run(self, target: Any, ready: Future[list[Any]]) -> None:
        try:
            self._loop.run_until_complete(self._serve(target, ready))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(_first(error))
        finally:
            self._loop.close()

    async def _serve(self, target: Any, ready: Future[list[Any]]) -> None:
        from mcp import Client, stdio_client

        if not isinstance(target, str):
            target = stdio_client(target, errlog=sys.__stderr__ or sys.stderr)
        async with Client(target) as client:
            self._client = client
            tools: list[Any] = []
            cursor = None
            while True:
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
            ready.set_result(tools)
            await self._stop.wait()


def _first(error: BaseException) -> Exception:
    """Return the first error of a group, as anyio raises them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


def _text(block: Any) -> str:
    """Return a part of a result as text."""
    if block.type == "text":
        return str(block.text)
    resource = getattr(block, "resource", None)
    if resource is not None and getattr(resource, "text", None) is not None:
        return str(resource.text)
    return f"[{block.type} without text]"
