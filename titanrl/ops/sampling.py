"""Samples tokens from logits."""

from __future__ import annotations

import torch

__all__ = ["sample_from_logits", "apply_top_k_top_p"]

BLOCK = 256
"""Tokens per block: the block is searched first, then the token in it."""


def sample_from_logits(logits: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens [R] int64 sampled from softmax(logits), and their log-probs [R] float32, nats.

    The token is the first at which the cumulative probability exceeds ``uniform``; a token of probability 0
    is never sampled.

    Args:
        logits: [R, V] any float; -inf excludes a token.
        uniform: [R] float64 in [0, 1).
    """
    # In two steps, block and token, because a cumulative sum over the vocabulary is slow.
    probability = logits.softmax(-1, dtype=torch.float32)
    width = min(BLOCK, logits.shape[-1])
    padding = -logits.shape[-1] % width
    padded = torch.nn.functional.pad(probability, (0, padding)) if padding else probability
    blocks = padded.view(len(padded), -1, width)
    block, remainder = _first_above(blocks.sum(-1), uniform, is_fraction=True)
    offset, _ = _first_above(blocks[torch.arange(len(block)), block], remainder)
    token = block * width + offset
    return token, probability.gather(-1, token.unsqueeze(-1)).squeeze(-1).log()


def _first_above(
    weight: torch.Tensor, target: torch.Tensor, *, is_fraction: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns [R] the first column at which the cumulative sum exceeds ``target``, and the target minus the
    sum before it.

    Args:
        weight: [R, C] >= 0, not all 0.
        target: [R] float64 >= 0.
        is_fraction: whether ``target`` is a fraction of the row's sum.
    """
    cumulative = weight.double().cumsum(-1)
    total = cumulative[:, -1]
    if is_fraction:
        target = target * total
    # Rounding may make it equal to the total, which no column exceeds.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    column = torch.searchsorted(cumulative, target.unsqueeze(-1), right=True)
    before = (cumulative - weight).gather(-1, column).squeeze(-1)
    return column.squeeze(-1), (target - before).clamp_min(0)


def apply_top_k_top_p(
    logits: torch.Tensor, *, top_k: int | None = None, top_p: float | None = None
) -> torch.Tensor:
    """Returns logits [R, V] with -inf outside the top k tokens and outside the nucleus of mass ``top_p``.

    top_k is applied first and top_p to the remaining tokens, as in vLLM. Ties with the k-th token remain.

    Args:
        logits: [R, V].
        top_k: number of tokens; None: all.
        top_p: mass of the smallest set of most probable tokens; None: 1.
    """
    if top_k is not None and top_k < logits.shape[-1]:
        smallest = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1, dtype=torch.float32)
        # A token remains while the tokens before it have not reached the mass; the first always remains.
        excess = probability.cumsum(-1) - probability >= top_p
        excess[:, 0] = False
        logits = logits.masked_fill(excess.scatter(-1, order, excess), -torch.inf)
    return logits
