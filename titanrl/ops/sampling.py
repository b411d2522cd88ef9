"""Drawing tokens from logits."""

from __future__ import annotations

import torch

__all__ = ["sample_from_logits", "apply_top_k_top_p"]

BLOCK = 256
"""Tokens whose probabilities are summed before one of them is looked for."""


def sample_from_logits(logits: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens [R] int64 drawn from softmax(logits), and their log-probs [R] float32, nats.

    The token is the first at which the cumulative probability exceeds ``uniform``; one of probability 0 is
    never drawn.

    Args:
        logits: [R, V] any float; -inf excludes a token.
        uniform: [R] float64 in [0, 1).
    """
    # In two steps, for a running sum over a whole vocabulary is slow: which block of tokens, which of them.
    probability = logits.softmax(-1, dtype=torch.float32)
    width = min(BLOCK, logits.shape[-1])
    missing = -logits.shape[-1] % width
    padded = torch.nn.functional.pad(probability, (0, missing)) if missing else probability
    blocks = padded.view(len(padded), -1, width)
    block, left = _first_above(blocks.sum(-1), uniform, of_total=True)
    within, _ = _first_above(blocks[torch.arange(len(block)), block], left)
    token = block * width + within
    return token, probability.gather(-1, token.unsqueeze(-1)).squeeze(-1).log()


def _first_above(
    weight: torch.Tensor, target: torch.Tensor, *, of_total: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns [R] the first column at which the running sum of ``weight`` exceeds ``target``, and what is
    left of it.

    Args:
        weight: [R, C] >= 0, not all 0. target: [R] float64 >= 0. of_total: whether it is a share of the sum.
    """
    cumulative = weight.double().cumsum(-1)
    total = cumulative[:, -1]
    if of_total:
        target = target * total
    # Rounding may bring it up to the total, which nothing exceeds.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    column = torch.searchsorted(cumulative, target.unsqueeze(-1), right=True)
    before = (cumulative - weight).gather(-1, column).squeeze(-1)
    return column.squeeze(-1), (target - before).clamp_min(0)


def apply_top_k_top_p(
    logits: torch.Tensor, *, top_k: int | None = None, top_p: float | None = None
) -> torch.Tensor:
    """Returns logits [R, V], -inf outside the ``top_k`` likeliest and the smallest set of mass ``top_p``.

    top_k is applied first and top_p to what remains, as vLLM does. None switches one off; ties with the last
    kept token of top_k are kept.
    """
    if top_k is not None and top_k < logits.shape[-1]:
        smallest = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1, dtype=torch.float32)
        # A token is needed while those before it have not reached the mass; the first always is.
        excess = probability.cumsum(-1) - probability >= top_p
        excess[:, 0] = False
        logits = logits.masked_fill(excess.scatter(-1, order, excess), -torch.inf)
    return logits
