"""What every sampler checks alike: its settings, and the rows it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from titanrl.errors import check_range

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest, SamplerContext

__all__ = ["check_rows", "check_settings", "top_k_of", "top_p_of"]


def check_settings(settings: object, *, temperature: str = "(0, inf)") -> None:
    """Refuses the common fields of a sampler's settings outside their ranges.

    Raises:
        ValueError: naming the field.
    """
    check_range(settings, "temperature", temperature)
    check_range(settings, "max_response_tokens", "[1, inf)")
    check_range(settings, "top_k", "[-1, inf)")
    check_range(settings, "top_p", "(0, 1]")


def top_k_of(settings: object) -> int | None:
    """Returns ``top_k`` with every way of switching it off (None, 0, -1) as None."""
    top_k: int | None = getattr(settings, "top_k", None)
    return None if top_k in (None, 0, -1) else top_k


def top_p_of(settings: object) -> float | None:
    """Returns ``top_p`` with both ways of switching it off (None, 1) as None."""
    top_p: float | None = getattr(settings, "top_p", None)
    return None if top_p in (None, 1) else top_p


def check_rows(rows: Sequence[RolloutRequest], host: SamplerContext, max_response_tokens: int) -> None:
    """Refuses rows that cannot be answered, before any is sampled.

    Raises:
        ValueError: an empty prompt, or one that leaves no room for a whole answer.
    """
    for row in rows:
        if not row.prompt_ids:
            raise ValueError(f"the prompt of group {row.group} has no tokens; give it text or a BOS token.")
        needed = len(row.prompt_ids) + max_response_tokens
        if needed > host.max_length:
            raise ValueError(
                f"the prompt of group {row.group} has {len(row.prompt_ids)} tokens; with "
                f"max_response_tokens = {max_response_tokens} that makes {needed}, more than the "
                f"{host.max_length} of [training] seq_len. Raise seq_len, lower max_response_tokens or drop "
                "the prompt."
            )
