"""Drawing tokens from log-probs."""

from __future__ import annotations

import torch

__all__ = ["draw", "truncate"]


def draw(logprob: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Returns [R] int64, the first token at which the cumulative probability exceeds ``uniform``.

    A token of probability 0 is never drawn.

    Args:
        logprob: [R, V] float32, need not be normalised; -inf excludes a token.
        uniform: [R] float64 in [0, 1).
    """
    cumulative = logprob.exp().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # The product may round up to the total, which no token exceeds.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target.unsqueeze(-1), right=True).squeeze(-1)


def truncate(logits: torch.Tensor, *, top_k: int | None = None, top_p: float | None = None) -> torch.Tensor:
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
