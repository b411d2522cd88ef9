"""Checks and conventions shared by the samplers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest, SamplerContext

__all__ = ["check_requests", "top_k_of", "top_p_of"]


def top_k_of(settings: object) -> int | None:
    """Returns ``top_k``, or None where it is off (None, 0, -1)."""
    top_k: int | None = getattr(settings, "top_k", None)
    return None if top_k in (None, 0, -1) else top_k


def top_p_of(settings: object) -> float | None:
    """Returns ``top_p``, or None where it is off (None, 1)."""
    top_p: float | None = getattr(settings, "top_p", None)
    return None if top_p in (None, 1) else top_p


def check_requests(
    requests: Sequence[RolloutRequest], context: SamplerContext, max_response_tokens: int
) -> None:
    """Checks that every request can be completed, before any is sampled.

    Args:
        requests: requests with their prompts.
        context: its max_length bounds prompt and response together.
        max_response_tokens: largest length of a response, end token included.

    Raises:
        ValueError: a prompt is empty, or too long for a response of full length.
    """
    for request in requests:
        if not request.prompt_ids:
            raise ValueError(
                f"the prompt of group {request.prompt_index} has no tokens; give it text or a BOS token."
            )
        needed = len(request.prompt_ids) + max_response_tokens
        if needed > context.max_length:
            raise ValueError(
                f"the prompt of group {request.prompt_index} has {len(request.prompt_ids)} tokens; with "
                f"max_response_tokens = {max_response_tokens} that makes {needed}, more than the "
                f"{context.max_length} of [training] seq_len. Raise it, lower max_response_tokens or drop "
                "the prompt."
            )
