"""Format reward for one block of reasoning in think tags, followed by a reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.components.rewards.text import texts
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["ThinkTags"]

OPEN, CLOSE = "<think>", "</think>"


@register("reward", "think_tags")
@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkTags:
    """Format reward for responses with one block of reasoning in think tags, followed by text.

    Returns `score` for exactly one `<think>` and one `</think>`, with nothing but white space before the
    first and more than white space after the second, else `miss`.

    Source: format reward of arXiv 2501.12948 section 2.2.2.
    """

    score: Annotated[float, Range("(-inf, inf)")] = 1.0
    """Reward of a response in the format."""
    miss: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Reward of any other response."""
    prefilled: bool = False
    """The chat template has already written <think>, so the response begins after it."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"),)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32."""
        values = [self.score if self._has_format(text) else self.miss for text in texts(batch, "response")]
        return torch.tensor(values, dtype=torch.float32)

    def _has_format(self, response: str) -> bool:
        text = OPEN + response if self.prefilled else response.lstrip()
        if text.count(OPEN) != 1 or text.count(CLOSE) != 1 or not text.startswith(OPEN):
            return False
        return bool(text.partition(CLOSE)[2].strip())
