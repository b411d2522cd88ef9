"""The [[environment.tool]] table: a tool and the limits of its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from titanrl.protocols.tools import ToolSettings
from titanrl.registry import Range, validated
from titanrl.registry.decode import Component

__all__ = ["ToolTable"]

MARGIN_SECONDS = 10.0
"""Time beyond the limit that a tool has of its own, for starting processes on a busy machine."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTable:
    """A tool that the policy may call, and the limits of its calls."""

    component: Annotated[ToolSettings, Component("tool")]
    """The tool; its keys are in the same table."""
    timeout_seconds: Annotated[float, Range("(0, inf)")] = 10.0
    """Time limit of a call, seconds."""
    max_result_chars: Annotated[int, Range("[1, inf)")] = 4000
    """Longest result, characters. A longer one is cut in the middle, with a note of the number left out."""
    concurrency: Annotated[int, Range("[1, 1024]")] = 32
    """Calls that run at a time on each rank; others wait, which does not count as time of the call."""

    def __post_init__(self) -> None:
        own = getattr(self.component, "timeout_seconds", None)
        if own is not None:
            object.__setattr__(self, "timeout_seconds", own + MARGIN_SECONDS)
