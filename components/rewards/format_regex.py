"""Whether the whole answer has a given form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.components.rewards.text import texts
from titanrl.errors import check_range
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["FormatRegex"]


@register("reward", "format_regex")
@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRegex:
    """Returns `score` iff the whole response matches the pattern, else `miss`.

    By re.fullmatch; dots match newlines too.
    """

    pattern: str
    """Python regular expression; beware of nested repetitions, which take exponential time."""
    score: float = 1.0
    """Value of a response that matches."""
    miss: float = 0.0
    """Value of any other."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"),)

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern, re.DOTALL)
        except re.error as error:
            raise ValueError(
                f"pattern must be a regular expression, got {self.pattern!r}: {error}."
            ) from None
        for key in ("score", "miss"):
            check_range(self, key, "(-inf, inf)")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32."""
        pattern = re.compile(self.pattern, re.DOTALL)
        values = [self.score if pattern.fullmatch(text) else self.miss for text in texts(batch, "response")]
        return torch.tensor(values, dtype=torch.float32)
