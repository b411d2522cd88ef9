"""Demonstrations of a task of reasoning-gym: its questions with the right answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from titanrl.components.sources.reasoning_gym import GeneratedQuestions, Questions
from titanrl.protocols import Example
from titanrl.registry import register

__all__ = ["ReasoningGymAnswers", "RightAnswers"]


@register("source", "reasoning_gym_demonstrations")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGymAnswers(Questions):
    """`size` questions of one task, each with the answer that the task's own scorer expects.

    Questions, their order, their split and the words in which they are asked are those of the source
    `reasoning_gym` with the same keys: a model trained on split "train" here has seen no question of split
    "held_out" there.

    Source: reasoning-gym, arXiv 2505.24760.
    """

    too_long: Literal["refuse", "drop"] = "refuse"
    """Demonstrations longer than [training] seq_len: refuse looks at all of them before training, drop
    leaves them out and counts them."""
    out_keys: ClassVar[tuple[str, ...]] = ()
    is_paired: ClassVar[bool] = False

    def open(self) -> RightAnswers:
        """Returns the demonstrations; nothing but the first question is generated before it is asked for.

        Raises:
            ConfigError: the task refuses its settings, or has no question on this side of the split.
        """
        return RightAnswers(self.questions())


@dataclass(frozen=True, slots=True)
class RightAnswers:
    """Questions with their right answers; each is a group of one row."""

    questions: GeneratedQuestions

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> tuple[Example, ...]:
        """Raises:
        ValueError: the task knows no right answer to this question; its scorer accepts several.
        """
        entry = self.questions.entry(index)
        if entry["answer"] is None:
            raise ValueError("has no answer of its own; choose a task with one right answer.")
        answer = {"role": "assistant", "content": str(entry["answer"])}
        return (Example(self.questions.asked(entry), (answer,)),)

    def place(self, index: int) -> str:
        return f"{self.questions.settings.dataset} question {index}"
