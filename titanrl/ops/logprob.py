"""Log-prob and entropy of hidden states: the only code with a vocabulary axis.

Few logits exist at a time: those of some tokens in the forward pass, those of some words, recomputed, in the
backward pass. The matrix products are plain; what is done to a row of logits are the two row kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch

from titanrl.ops.row_kernels import EAGER, Kernels, RowStatistics
from titanrl.ops.topk import topk

__all__ = ["TokenStatistics", "token_statistics"]

CHUNK_BYTES = 32 * 2**20
"""Size of the logits that exist at one time on a CPU, in the backward pass, beside the gradients, half of it;
a GPU wants larger products: eight times as much."""
COMPARED = 2**20
"""Pairs of ids that are compared at a time."""
MAX_TOKENS = 16384
"""Tokens over which a word's gradient is one product."""


class TokenStatistics(NamedTuple):
    """All float32; replicated over the vocabulary's ranks."""

    logprob: torch.Tensor
    """[S, K] log softmax(z / temperature) at ids, nats."""
    entropy: torch.Tensor
    """[S] nats, differentiable."""
    sum_pi_squared: torch.Tensor
    """[S] sum of the squared probabilities; no gradient."""
    topk_ids: torch.Tensor
    """[S, top_k] int64, the likeliest tokens, the most likely first."""
    likeliest_logprob: torch.Tensor
    """[S, top_k] their log-probs; no gradient."""


Group: TypeAlias = Any
"""A process group, or None; torch.distributed is imported by whoever has one."""


def token_statistics(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    *,
    temperature: float = 1.0,
    group: Group = None,
    vocab_start: int = 0,
    kernels: Kernels = EAGER,
    top_k: int = 0,
) -> TokenStatistics:
    """Returns log softmax(hidden @ weight.T / temperature) at ``ids`` with entropy and sum of squares.

    And at the ``top_k`` likeliest tokens, if any are wanted.

    The gradient to ``hidden`` is partial over ``group``: its sum over the ranks is the gradient.

    Args:
        hidden: [S, D]. weight: [V/tp, D], rows ``vocab_start ...`` of the head, sharded on V over ``group``.
        ids: [S, K] int64 token ids.
    """
    values = _TokenStatistics.apply(  # type: ignore[no-untyped-call]
        hidden, weight, ids, temperature, group, vocab_start, kernels, top_k
    )
    return TokenStatistics(*values)


class _TokenStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        ids: torch.Tensor,
        temperature: float,
        group: Group,
        vocab_start: int,
        kernels: Kernels,
        top_k: int,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        local = ids - vocab_start
        mine = (local >= 0) & (local < weight.shape[0])
        local = local.clamp(0, weight.shape[0] - 1)
        logprob = hidden.new_empty(ids.shape, dtype=torch.float32)
        entropy, squares = logprob.new_empty(len(hidden)), logprob.new_empty(len(hidden))
        log_normaliser = logprob.new_empty(len(hidden), 1)
        best_ids, best = ids.new_empty(len(hidden), top_k), logprob.new_empty(len(hidden), top_k)
        for part in _slices(len(hidden), _chunk_size(CHUNK_BYTES, weight, len(weight))):
            logits = hidden[part] @ weight.t()
            picked = logits.gather(-1, local[part]).float() / temperature
            picked = torch.where(mine[part], picked, 0.0)
            rows = kernels.statistics(logits, temperature)
            if group is not None:
                rows, picked = _reduce(rows, picked, group)
            log_normaliser[part] = rows.peak + rows.total.log()
            logprob[part] = picked - log_normaliser[part]
            entropy[part] = (log_normaliser[part] - rows.weighted / rows.total).squeeze(-1)
            squares[part] = (rows.squares / rows.total.square()).squeeze(-1)
            if top_k:
                top = topk(logits, top_k, group=group, vocab_start=vocab_start)
                best_ids[part], best[part] = top.ids, top.logits / temperature - log_normaliser[part]
        ctx.save_for_backward(hidden, weight, ids, local, mine, logprob, log_normaliser, entropy)
        ctx.temperature, ctx.kernels = temperature, kernels
        ctx.mark_non_differentiable(squares, best_ids, best)
        return logprob, entropy, squares, best_ids, best

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, ids, local, mine, logprob, log_normaliser, entropy = ctx.saved_tensors
        grad_logprob, grad_entropy, *_ = gradients
        if grad_logprob is None:
            grad_logprob = torch.zeros(local.shape, device=hidden.device)
        grad_logprob = grad_logprob.float()
        total = grad_logprob.sum(-1, keepdim=True)
        entropy = entropy.unsqueeze(-1)
        if grad_entropy is not None:
            grad_entropy = grad_entropy.float().unsqueeze(-1)
        picked = _picked_gradient(ids, logprob, grad_logprob, entropy, grad_entropy) / ctx.temperature
        hidden_gradient = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        # By tiles of words: one product over all tokens is a tile's whole gradient. Over several parts of
        # the tokens it is summed in float32, whatever the compute dtype.
        parts = _slices(len(hidden), MAX_TOKENS)
        summed = weight.dtype if len(parts) == 1 else torch.float32
        weight_gradient = torch.zeros(weight.shape, dtype=summed, device=weight.device)
        for part in parts:
            tokens = hidden[part]
            for tile in _slices(len(weight), _chunk_size(CHUNK_BYTES // 2, weight, len(tokens))):
                gradient = ctx.kernels.gradient(
                    tokens @ weight[tile].t(),
                    ctx.temperature,
                    log_normaliser[part],
                    total[part],
                    entropy[part],
                    None if grad_entropy is None else grad_entropy[part],
                )
                inside = mine[part] & (local[part] >= tile.start) & (local[part] < tile.stop)
                row, pick = inside.nonzero(as_tuple=True)
                column = local[part][row, pick] - tile.start
                gradient[row, column] = picked[part][row, pick].to(gradient.dtype)
                hidden_gradient[part] += gradient @ weight[tile]
                weight_gradient[tile] += gradient.t() @ tokens
        return hidden_gradient.to(hidden.dtype), weight_gradient.to(weight.dtype), *[None] * 6


def _picked_gradient(
    ids: torch.Tensor,
    logprob: torch.Tensor,
    grad_logprob: torch.Tensor,
    entropy: torch.Tensor,
    grad_entropy: torch.Tensor | None,
) -> torch.Tensor:
    """Returns [S, K] float32 d loss / d z at ``ids``: ``g - pi (sum of g + g_H (log pi + H))``.

    In lower precision the two would cancel to nothing where pi is nearly 1.

    Args:
        ids, logprob, grad_logprob: [S, K]; an id that stands twice gets both gradients.
        entropy, grad_entropy: [S, 1].
    """
    slope = grad_logprob.sum(-1, keepdim=True)
    if grad_entropy is not None:
        slope = slope + grad_entropy * (logprob + entropy)
    if ids.shape[1] > 1 and len(ids) > 0:
        parts = _slices(len(ids), max(1, COMPARED // ids.shape[1] ** 2))
        grad_logprob = torch.cat([_sum_over_duplicates(ids[part], grad_logprob[part]) for part in parts])
    return grad_logprob - logprob.exp() * slope


def _sum_over_duplicates(ids: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Returns [S, K] the sum of ``gradient`` [S, K] over all places of the row that hold the same id."""
    same = (ids.unsqueeze(-1) == ids.unsqueeze(-2)).float()
    return torch.einsum("skj,sj->sk", same, gradient)


def _chunk_size(size: int, weight: torch.Tensor, width: int) -> int:
    """Returns how many rows (or columns) of logits, each of ``width`` numbers, take ``size`` bytes."""
    size *= 1 if weight.device.type == "cpu" else 8
    return max(1, size // (max(1, width) * weight.element_size()))


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _reduce(rows: RowStatistics, picked: torch.Tensor, group: Group) -> tuple[RowStatistics, torch.Tensor]:
    """Returns both summed over the vocabulary's ranks: one max, one sum."""
    peak = rows.peak.clone()
    torch.distributed.all_reduce(peak, torch.distributed.ReduceOp.MAX, group)
    shrink = (rows.peak - peak).exp()
    packed = torch.cat(
        [rows.total * shrink, rows.weighted * shrink, rows.squares * shrink.square(), picked], dim=-1
    )
    torch.distributed.all_reduce(packed, group=group)
    return RowStatistics(peak, packed[:, :1], packed[:, 1:2], packed[:, 2:3]), packed[:, 3:]
