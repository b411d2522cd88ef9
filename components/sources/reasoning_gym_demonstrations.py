"""Demonstrations of a reasoning-gym task: its prompts with the reference answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from titanrl.components.sources.reasoning_gym import TaskPrompts, TaskSettings
from titanrl.protocols import Example
from titanrl.registry import register

__all__ = ["Demonstrations", "ReasoningGymDemonstrations"]


@register("source", "reasoning_gym_demonstrations")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGymDemonstrations(TaskSettings):
    """Demonstrations of a reasoning-gym task: each prompt with the reference answer as the response.

    Prompts, their order, split and wording are those of the source `reasoning_gym` with the same keys, so a
    model trained on split "train" here has not seen any prompt of split "held_out" there.

    Source: reasoning-gym, arXiv 2505.24760.
    """

    renamed: ClassVar[dict[str, str]] = {"too_long": "on_overlong", "on_overlong=refuse": "error"}
    on_overlong: Literal["error", "drop"] = "error"
    """Treatment of demonstrations longer than [training] seq_len. error: check all of them before training
    and refuse them; drop: skip and count them."""
    out_keys: ClassVar[tuple[str, ...]] = ()
    is_paired: ClassVar[bool] = False

    def open(self) -> Demonstrations:
        """Returns the demonstrations, which are generated lazily; only the first prompt is generated here.

        Raises:
            ConfigError: the task rejects its settings, or has no prompt in this split.
        """
        return Demonstrations(self.generate())


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Prompts with their reference answers; each is a group of one row."""

    prompts: TaskPrompts

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> tuple[Example, ...]:
        """Returns the demonstration at an index.

        Raises:
            ValueError: the task has no reference answer to this prompt, because its verifier accepts several.
        """
        entry = self.prompts.entry(index)
        if entry["answer"] is None:
            raise ValueError("has no reference answer; choose a task with one correct answer.")
        response = {"role": "assistant", "content": str(entry["answer"])}
        return (Example(self.prompts.messages(entry), (response,)),)

    def location(self, index: int) -> str:
        return f"{self.prompts.settings.dataset} prompt {index}"
