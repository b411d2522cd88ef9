"""A Python function as a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from titanrl.protocols.tools import LiveTool, OpenTool
from titanrl.registry import register
from titanrl.runtime.dotted import load_dotted

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest
    from titanrl.runtime.tools.schemas import FunctionTool

__all__ = ["Function"]


@register("tool", "function")
@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """Tool from a Python function of your own, `module:name`, sync or async.

    Its type hints and its docstring, with a line per parameter under `Args:`, become the schema that the
    model reads. The result may be text or any value that becomes JSON; an exception is a message for the
    model. The same function serves all rollouts at a time; for a state per rollout use `toolset`.
    """

    function: str
    """Module and name of the function: `my_tools:search`. The module is imported from the working directory,
    from an installed package, or from a file in imports."""

    def __post_init__(self) -> None:
        self._tool()

    def _tool(self) -> FunctionTool:
        from titanrl.runtime.tools.schemas import FunctionTool

        function: Any = load_dotted(self.function)
        return FunctionTool(function, self.function)

    def start(self) -> LiveFunction:
        """Creates the live tool."""
        return LiveFunction(self._tool())


class LiveFunction(LiveTool):
    """Live tool of `function`."""

    def __init__(self, tool: FunctionTool) -> None:
        self.schemas = (tool.schema,)
        self._opened = OpenTool({tool.name: tool})

    def open(self, row: RolloutRequest) -> OpenTool:
        """Returns the function."""
        return self._opened
