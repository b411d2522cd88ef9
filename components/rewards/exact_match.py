"""Whether the answer's text, box, tag or number is the reference's."""

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
    r"""Returns 1 iff what is extracted from the response equals the reference answer, else 0.

    boxed takes the content of the last balanced ``\boxed{...}``, answer_tag that of the last
    ``<answer>...</answer>``, whole the response. On both sides runs of white space become one space, the ends
    are stripped and, with ignore_case, case is folded. number takes the last number of each text, thousands
    commas removed, and compares floats: `$1,234.50` is 1234.5, `10-5` is 5. Where nothing is found: 0.

    Source: the usual verifiable reward, e.g. arXiv 2501.12948 section 2.2.2.
    """

    extract: Literal["boxed", "number", "answer_tag", "whole"] = "boxed"
    """What of the response is compared."""
    ignore_case: bool = True
    """Whether upper and lower case are the same."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"), ("text", "answer"))

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32, 1 or 0."""
        pairs = zip(texts(batch, "response"), texts(batch, "answer"), strict=True)
        return torch.tensor([float(self._is_right(*pair)) for pair in pairs], dtype=torch.float32)

    def answer_of(self, response: str) -> str | float | None:
        """Returns what is compared, None where nothing is found: answers that say the same vote together."""
        if self.extract == "number":
            found = last_number(response)
            # Numbers beyond the range of floats would all be equal as infinities.
            return found if found is not None and math.isfinite(found) else None
        if self.extract == "boxed":
            text = last_boxed(response)
        elif self.extract == "answer_tag":
            text = last_tag(response, "answer")
        else:
            text = response
        return None if text is None else self._normal(text)

    def _is_right(self, response: str, answer: str) -> bool:
        found = self.answer_of(response)
        wanted = last_number(answer) if self.extract == "number" else self._normal(answer)
        return found is not None and found == wanted

    def _normal(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self.ignore_case else text
