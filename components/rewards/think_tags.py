"""Whether the answer thinks first, inside one pair of tags, and then says something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.components.rewards.text import texts
from titanrl.errors import check_range
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["ThinkTags"]

OPEN, CLOSE = "<think>", "</think>"


@register("reward", "think_tags")
@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkTags:
    """Returns `score` iff the response thinks once, in tags, and then answers; else `miss`.

    That is: exactly one `<think>` and one `</think>`, nothing but white space before the first, and more than
    white space after the second.

    Source: format reward of arXiv 2501.12948 section 2.2.2.
    """

    score: float = 1.0
    """Value of a response in the format."""
    miss: float = 0.0
    """Value of any other."""
    prefilled: bool = False
    """Whether the chat template has already written <think>, so that the response begins after it."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"),)

    def __post_init__(self) -> None:
        for key in ("score", "miss"):
            check_range(self, key, "(-inf, inf)")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32."""
        values = [self.score if self._fits(text) else self.miss for text in texts(batch, "response")]
        return torch.tensor(values, dtype=torch.float32)

    def _fits(self, response: str) -> bool:
        text = OPEN + response if self.prefilled else response.lstrip()
        if text.count(OPEN) != 1 or text.count(CLOSE) != 1 or not text.startswith(OPEN):
            return False
        return bool(text.partition(CLOSE)[2].strip())
