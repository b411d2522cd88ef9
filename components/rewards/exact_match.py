"""Exact match of a text, box, tag or number extracted from the response with the reference answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from titanrl.components.rewards.text import last_boxed, last_number, last_tag, texts
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["ExactMatch"]


@register("reward", "exact_match")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatch:
    r"""Exact match of the value extracted from the response with the reference answer: 1 if equal, else 0.

    `extract` selects the value: `boxed` the content of the last balanced ``\boxed{...}`` or ``\fbox{...}``,
    `answer_tag` that of the last ``<answer>...</answer>``, `whole` the entire response. On both sides, runs
    of white space become one space, the ends are stripped and, with ignore_case, case is folded. `number`
    takes the last number of each text without thousands separators and compares floats: `$1,234.50` is
    1234.5, `3/4` is 0.75, `1.5e3` is 1500, `10-5` is 5. A response without such a value scores 0.

    Source: the usual verifiable reward, e.g. arXiv 2501.12948 section 2.2.2.
    """

    extract: Literal["boxed", "number", "answer_tag", "whole"] = "boxed"
    """Part of the response to compare."""
    ignore_case: bool = True
    """Ignore the difference between upper and lower case."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"), ("text", "answer"))

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32, 1 or 0."""
        pairs = zip(texts(batch, "response"), texts(batch, "answer"), strict=True)
        return torch.tensor([float(self._is_correct(*pair)) for pair in pairs], dtype=torch.float32)

    def answer_of(self, response: str) -> str | float | None:
        """Returns the value to compare, None if the response has none; equal values count together in
        majority voting.
        """
        if self.extract == "number":
            number = last_number(response)
            # Numbers beyond the range of floats would all be equal as infinities.
            return number if number is not None and math.isfinite(number) else None
        if self.extract == "boxed":
            text = last_boxed(response)
        elif self.extract == "answer_tag":
            text = last_tag(response, "answer")
        else:
            text = response
        return None if text is None else self._normalize(text)

    def _is_correct(self, response: str, reference: str) -> bool:
        value = self.answer_of(response)
        expected = last_number(reference) if self.extract == "number" else self._normalize(reference)
        return value is not None and value == expected

    def _normalize(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self.ignore_case else text
