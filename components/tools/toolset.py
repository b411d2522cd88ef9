"""An object whose public methods are tools, one per rollout."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from titanrl.protocols.tools import LiveTool, OpenTool
from titanrl.registry import register
from titanrl.runtime.dotted import load_dotted

if TYPE_CHECKING:
    from collections.abc import Callable

    from titanrl.protocols import RolloutRequest

__all__ = ["Toolset"]


@register("tool", "toolset")
@dataclass(frozen=True, slots=True, kw_only=True)
class Toolset:
    """Tools from the public methods of an object with a state of its own in each rollout.

    `factory` is a class, or a function that returns an object, as TRL's `environment_factory`. Its public
    methods with a docstring are tools, as with `function`, except three, which are optional.
    `reset(**columns)` is called when a rollout begins, with the prompt's columns, `prompt` and `answer`; it
    may return text that is added to the prompt. `close()` is called when it ends. `reward`, a method or an
    attribute, is the rollout's reward, which the reward `environment` reads.
    """

    factory: str
    """Module and name of the class: `my_tools:Shop`. It is imported as `function` is."""

    def __post_init__(self) -> None:
        load_dotted(self.factory, "factory")

    def start(self) -> LiveToolset:
        """Creates the live tool. The factory is called once for the schemas."""
        return LiveToolset(self.factory)


class LiveToolset(LiveTool):
    """Live tool of `toolset`."""

    def __init__(self, path: str) -> None:
        from titanrl.runtime.tools.schemas import FunctionTool, public_methods

        self._factory: Callable[[], Any] = load_dotted(path, "factory")
        instance = self._factory()
        self._tools = {
            name: FunctionTool(method, f"{path}.{name}") for name, method in public_methods(instance).items()
        }
        if not self._tools:
            raise ValueError(
                f"factory {path!r} returns an object of type {type(instance).__name__} without public "
                "methods that have a docstring; add one."
            )
        self.schemas = tuple(tool.schema for tool in self._tools.values())
        _close(instance)

    def open(self, row: RolloutRequest) -> OpenTool:
        """Returns the methods of a new object, after its ``reset``."""
        instance = self._factory()
        observation = ""
        if (reset := getattr(instance, "reset", None)) is not None:
            values = {"prompt": row.messages or row.text, "answer": row.answer, **row.columns}
            observation = reset(**_accepted(reset, values)) or ""
        functions = {name: tool.bind(getattr(instance, name)) for name, tool in self._tools.items()}
        has_reward = hasattr(instance, "reward")
        reward = (lambda: _reward(instance)) if has_reward else None
        return OpenTool(functions, lambda: _close(instance), str(observation), reward)


def _reward(instance: Any) -> Any:
    return instance.reward() if callable(instance.reward) else instance.reward


def _accepted(reset: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that a ``reset`` has parameters for; all of them, if it takes any by keyword."""
    parameters = inspect.signature(reset).parameters
    if any(each.kind == each.VAR_KEYWORD for each in parameters.values()):
        return values
    return {name: value for name, value in values.items() if name in parameters}


def _close(instance: Any) -> None:
    if (close := getattr(instance, "close", None)) is not None:
        close()
