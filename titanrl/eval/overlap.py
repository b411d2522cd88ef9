"""How many of the held-out examples are different ones, and which of them are trained on too."""

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
    """What a table of held-out examples holds."""

    table: str
    examples: int
    """That a validation takes."""
    different: int
    trained_on: int
    """Of the different ones."""
    training: str
    """Table of the training examples."""
    training_examples: int

    def __str__(self) -> str:
        also = f"{self.trained_on:,} of them" if self.trained_on else "none of them"
        return (
            f"[{self.table}] {self.examples:,} examples, {self.different:,} different, {also} among the "
            f"{self.training_examples:,} of [{self.training}]."
        )


def compare(experiment: Experiment) -> Iterator[Overlap]:
    """Yields what each held-out table holds, compared with all that is trained on; loads no model.

    Examples are the same if they ask the same, whatever the system message and the answer.

    Raises:
        ConfigError: a source cannot be opened.
    """
    evaluation = experiment.evaluation
    if evaluation is None:
        return
    training = "data" if experiment.prompts is None else "prompts"
    trained, examples = _questions(getattr(experiment, training))
    for name in ("data", "prompts"):
        settings = getattr(evaluation, name)
        if settings is not None:
            held_out, count = _questions(settings, evaluation.num_prompts)
            yield Overlap(
                f"evaluation.{name}", count, len(held_out), len(held_out & trained), training, examples
            )


def _questions(settings: Any, most: int | None = None) -> tuple[set[str], int]:
    """Returns what a source asks, and how many examples it has; bad ones ask nothing.

    Args:
        most: of its examples are read; None: all.
    """
    source, found = settings.open(), set[str]()
    count = len(source) if most is None else min(len(source), most)
    for index in range(count):
        try:
            found.add(_question(source[index]))
        except ValueError:
            continue  # What is wrong with it is told by whoever reads it for training.
    return found, count


def _question(example: Prompt | tuple[Example, ...]) -> str:
    """Returns all that comes before the first answer, without a system message."""
    if isinstance(example, Prompt):
        asked: Any = example.messages
    else:
        row = example[0]
        asked = row.prompt if row.prompt or isinstance(row.response, str) else row.response
    if isinstance(asked, str):
        return asked
    before = takewhile(lambda message: message["role"] != "assistant", asked)
    return json.dumps([message for message in before if message["role"] != "system"])
