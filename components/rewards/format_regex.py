"""Format reward: a regular expression that the whole response must match."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.components.rewards.text import texts
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["FormatRegex"]


@register("reward", "format_regex")
@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRegex:
    """Format reward for responses that match a regular expression as a whole.

    Returns `score` if re.fullmatch succeeds, else `miss`; dots also match newlines.
    """

    pattern: str
    """Python regular expression; nested repetitions can take exponential time."""
    score: Annotated[float, Range("(-inf, inf)")] = 1.0
    """Reward of a matching response."""
    miss: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Reward of any other response."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"),)

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern, re.DOTALL)
        except re.error as error:
            raise ValueError(
                f"pattern must be a regular expression, got {self.pattern!r}: {error}."
            ) from None

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32."""
        pattern = re.compile(self.pattern, re.DOTALL)
        values = [self.score if pattern.fullmatch(text) else self.miss for text in texts(batch, "response")]
        return torch.tensor(values, dtype=torch.float32)
