"""Verifiable instructions that a response follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from titanrl.components.rewards.ifeval.checks import follows, loose_variants
from titanrl.components.rewards.text import texts
from titanrl.ops.columns import lookup
from titanrl.ops.scores import fill_missing_scores
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["IFEval"]


@register("reward", "ifeval")
@dataclass(frozen=True, slots=True, kw_only=True)
class IFEval:
    """Verifiable instructions of the prompt that the response follows: 1 if it follows all, else 0.

    The prompt's row names the instructions in two columns, as IFEval does:

        instruction_id_list   ["punctuation:no_comma", "length_constraints:number_words"]
        kwargs                [{}, {"num_words": 300, "relation": "at least"}]

    Arguments that are None are ignored. All 25 kinds of instructions are known. `strict` checks the
    response as it is. `loose` also accepts it without its first line, its last line or both, and without
    asterisks; one of these forms must follow the instruction, another may follow the next one. A row fails
    if a column is missing or malformed, or names an unknown instruction.

    Source: IFEval, arXiv 2311.07911. Deviations: keywords, forbidden words and section marks are literal
    texts, not regular expressions; sentences end at marks before white space and words at white space or
    punctuation, instead of NLTK's tokenizers; language detection has a fixed seed.
    """

    mode: Literal["strict", "loose"] = "strict"
    """Forms of the response that may follow an instruction."""
    score: Literal["all", "fraction"] = "all"
    """`all`: 1 if all instructions are followed, else 0. `fraction`: the share that is followed."""
    instructions: str = "instruction_id_list"
    """Column of the instruction ids, a list or JSON; dots reach into tables."""
    arguments: str = "kwargs"
    """Column of their arguments, a list of mappings or JSON; dots reach into tables."""
    failure_score: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Score of a response whose row does not name its instructions."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"), ("text", "columns"))

    @property
    def in_columns(self) -> tuple[str, ...]:
        return self.instructions, self.arguments

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32 in [0, 1], or failure_score."""
        return fill_missing_scores(self.scores(batch), self.failure_score)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns the score of each row, or what is wrong with its columns."""
        return [
            self._score(response, columns)
            for response, columns in zip(texts(batch, "response"), batch["text", "columns"], strict=True)
        ]

    def _score(self, response: str, columns: Mapping[str, Any]) -> float | str:
        names, arguments = _decoded(columns, self.instructions), _decoded(columns, self.arguments)
        if not isinstance(names, list) or not names:
            return f"the column {self.instructions!r} must be a list of instruction ids, got {names!r:.200}"
        if not isinstance(arguments, list) or len(arguments) != len(names):
            text = f"the column {self.arguments!r} must be a list of {len(names)} mappings"
            return f"{text}, one per instruction, got {arguments!r:.200}"
        forms = [response] if self.mode == "strict" else loose_variants(response)
        followed = []
        for name, own in zip(names, arguments, strict=True):
            try:
                followed.append(any(follows(str(name), form, dict(own or {})) for form in forms))
            except (ValueError, TypeError) as error:
                return f"the row {error}"
        return float(all(followed)) if self.score == "all" else sum(followed) / len(followed)


def _decoded(columns: Mapping[str, Any], name: str) -> Any:
    value = lookup(columns, name)
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return list(value) if isinstance(value, tuple) else value
