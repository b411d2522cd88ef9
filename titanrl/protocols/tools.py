"""Contracts of tools: functions that the policy may call in a rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from titanrl.protocols.rollout import RolloutRequest

__all__ = ["BadArguments", "LiveTool", "OpenTool", "ToolCall", "ToolSettings"]


class BadArguments(ValueError):
    """Raised for arguments that are missing, unknown or of the wrong type; the policy reads the text."""


class ToolCall(NamedTuple):
    """A call that the policy wrote."""

    name: str
    arguments: Mapping[str, Any]


class OpenTool(NamedTuple):
    """A tool in one rollout."""

    functions: Mapping[str, Callable[[Mapping[str, Any]], Any]]
    """Name of each function -> the function, which gets the arguments as one mapping and returns the result
    or an awaitable of it. A result that is no text becomes JSON."""
    close: Callable[[], Any] | None = None
    """Called at the end of the rollout."""
    observation: str = ""
    """Text that is added to the prompt."""
    reward: Callable[[], Any] | None = None
    """Returns the reward of the rollout so far, a number or None; called at its end."""


class LiveTool(Protocol):
    """A live tool. One object serves all rollouts of a process, many at a time.

    Functions that do not return an awaitable, ``open`` and the ``close`` of an ``OpenTool`` are called in
    threads; awaitables are awaited in the event loop of the environment.
    """

    schemas: Sequence[Mapping[str, Any]]
    """OpenAI schema of each function."""

    def open(self, row: RolloutRequest) -> OpenTool:
        """Return the tool's functions for one rollout, with a state of their own.

        Args:
            row: the prompt of the rollout.
        """
        ...

    def close(self) -> None:
        """Release all resources; the default does nothing."""
        return


class ToolSettings(Protocol):
    """A registered tool: its fields are its TOML table, ``start`` creates the live tool."""

    def start(self) -> LiveTool: ...
