"""Overlap of held-out examples with the training data, and duplicates among them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.protocols import Prompt

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.protocols import Example

__all__ = ["Overlap", "compare"]


class Overlap(NamedTuple):
    """Counts of one table of held-out examples."""

    table: str
    examples: int
    """Examples that a validation uses."""
    num_unique: int
    num_in_training: int
    """Unique examples that also occur in the training data."""
    training: str
    """Table of the training examples."""
    training_examples: int

    def __str__(self) -> str:
        shared = f"{self.num_in_training:,} of them" if self.num_in_training else "none of them"
        return (
            f"[{self.table}] {self.examples:,} examples, {self.num_unique:,} unique, {shared} among the "
            f"{self.training_examples:,} of [{self.training}]."
        )


def compare(experiment: Experiment) -> Iterator[Overlap]:
    """Yields the overlap of each held-out table with the training data; loads no model.

    Examples are equal if their prompts are, whatever the system message and the reference answer.

    Raises:
        ConfigError: a source cannot be opened.
    """
    evaluation = experiment.evaluation
    if evaluation is None:
        return
    training = "data" if experiment.prompts is None else "prompts"
    training_prompts, examples = _prompts_of(getattr(experiment, training))
    for name in ("data", "prompts"):
        settings = getattr(evaluation, name)
        if settings is not None:
            held_out, count = _prompts_of(settings, evaluation.num_prompts)
            yield Overlap(
                f"evaluation.{name}",
                count,
                len(held_out),
                len(held_out & training_prompts),
                training,
                examples,
            )


def _prompts_of(settings: Any, limit: int | None = None) -> tuple[set[str], int]:
    """Returns the unique prompts of a source and the number of examples read; skips invalid ones.

    Args:
        settings: table of the source.
        limit: how many examples to read; None: all.
    """
    source, prompts = settings.open(), set[str]()
    count = len(source) if limit is None else min(len(source), limit)
    for index in range(count):
        try:
            prompts.add(_prompt_of(source[index]))
        except ValueError:
            continue  # The loader reports it when it reads the example.
    return prompts, count


def _prompt_of(example: Prompt | tuple[Example, ...]) -> str:
    """Returns everything before the first response, without a system message."""
    if isinstance(example, Prompt):
        prompt: Any = example.messages
    else:
        row = example[0]
        prompt = row.prompt if row.prompt or isinstance(row.response, str) else row.response
    if isinstance(prompt, str):
        return prompt
    before = takewhile(lambda message: message["role"] != "assistant", prompt)
    return json.dumps([message for message in before if message["role"] != "system"])
