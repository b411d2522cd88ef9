"""Prompts for environments that make their own tasks: one text, many times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from titanrl.protocols import Prompt
from titanrl.registry import Range, register


@register("source", "tasks")
@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The same chat as many prompts with different identities, from which an environment makes its tasks.

    Each prompt has the column ``index``. Prompts of [evaluation.prompts] differ from those of [prompts] by
    ``first``.
    """

    prompt: str
    """Message of the user."""
    system: str | None = None
    """Message of the system before it. Default: none."""
    size: Annotated[int, Range("[1, inf)")] = 1024
    """Number of prompts."""
    first: Annotated[int, Range("[0, inf)")] = 0
    """Index of the first prompt."""

    def open(self) -> TaskPrompts:
        """Returns the prompts."""
        return TaskPrompts(self)


class TaskPrompts:
    """The prompts of a source `tasks`."""

    def __init__(self, settings: Tasks) -> None:
        self._settings = settings

    def __len__(self) -> int:
        return self._settings.size

    def __getitem__(self, index: int) -> Prompt:
        settings = self._settings
        if not 0 <= index < settings.size:
            raise IndexError(index)
        number = settings.first + index
        system = [] if settings.system is None else [{"role": "system", "content": settings.system}]
        messages = (*system, {"role": "user", "content": settings.prompt})
        return Prompt(messages, columns={"index": number}, id=str(number))
