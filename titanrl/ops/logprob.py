"""Log-probs and entropy of hidden states: the only code with a vocabulary axis.

Few logits exist at a time: in the forward pass those of a chunk of tokens, in the backward pass those of a
tile of vocabulary entries, recomputed. Matrix products are plain; the two row kernels do the rest.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch

from titanrl.ops.row_kernels import EAGER, Kernels, RowStatistics
from titanrl.ops.topk import topk

__all__ = ["TokenStatistics", "token_statistics"]

CHUNK_BYTES = 32 * 2**20
"""Size of the logits that exist at one time on a CPU; in the backward pass half of it, besides the gradients.
A GPU needs larger products: eight times as much."""
PAIRS_PER_CHUNK = 2**20
"""Pairs of ids that are compared at one time."""
MAX_TOKENS = 16384
"""Tokens over which the gradient of a vocabulary entry is one product."""


class TokenStatistics(NamedTuple):
    """Statistics of S tokens, all float32; replicated over the ranks that shard the vocabulary."""

    logprob: torch.Tensor
    """[S, K] log softmax(z / temperature) at ids, nats."""
    entropy: torch.Tensor
    """[S] nats, differentiable."""
    sum_pi_squared: torch.Tensor
    """[S] sum of squared probabilities; no gradient."""
    topk_ids: torch.Tensor
    """[S, top_k] int64, the token ids of highest probability, in descending order."""
    topk_logprob: torch.Tensor
    """[S, top_k] their log-probs; no gradient."""


Group: TypeAlias = Any
"""A process group, or None; typed loosely, so that torch.distributed is not imported here."""


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
    dtype: torch.dtype | None = None,
) -> TokenStatistics:
    """Returns log softmax(hidden @ weight.T / temperature) at ``ids``, with entropy and sum of squares.

    The gradient with respect to ``hidden`` is partial over ``group``: its sum over the ranks is the gradient.

    Args:
        hidden: [S, D].
        weight: [V/tp, D], rows ``vocab_start ...`` of the head, sharded on V over ``group``.
        ids: [S, K] int64 token ids.
        temperature: divides the logits, > 0.
        group: of the ranks that shard the vocabulary; None: not sharded.
        vocab_start: first vocabulary entry of this rank.
        kernels: row kernels, eager or compiled.
        top_k: number of top-k tokens to return too.
        dtype: of the logits and of every matrix product; None: that of ``weight``. Gradients have the dtypes
            of ``hidden`` and ``weight``.
    """
    values = _TokenStatistics.apply(  # type: ignore[no-untyped-call]
        hidden, weight, ids, temperature, group, vocab_start, kernels, top_k, dtype or weight.dtype
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
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        local = ids - vocab_start
        is_local = (local >= 0) & (local < weight.shape[0])
        local = local.clamp(0, weight.shape[0] - 1)
        logprob = hidden.new_empty(ids.shape, dtype=torch.float32)
        entropy, sum_pi_squared = logprob.new_empty(len(hidden)), logprob.new_empty(len(hidden))
        logsumexp = logprob.new_empty(len(hidden), 1)
        topk_ids, topk_logprob = ids.new_empty(len(hidden), top_k), logprob.new_empty(len(hidden), top_k)
        cast = weight.to(dtype)
        for part in _slices(len(hidden), _chunk_size(CHUNK_BYTES, cast, len(weight))):
            logits = hidden[part].to(dtype) @ cast.t()
            selected = logits.gather(-1, local[part]).float() / temperature
            selected = torch.where(is_local[part], selected, 0.0)
            rows = kernels.statistics(logits, temperature)
            if group is not None:
                rows, selected = _reduce(rows, selected, group)
            logsumexp[part] = rows.row_max + rows.sum_exp.log()
            logprob[part] = selected - logsumexp[part]
            entropy[part] = (logsumexp[part] - rows.sum_exp_logit / rows.sum_exp).squeeze(-1)
            sum_pi_squared[part] = (rows.sum_sq_exp / rows.sum_exp.square()).squeeze(-1)
            if top_k:
                top = topk(logits, top_k, group=group, vocab_start=vocab_start)
                topk_ids[part], topk_logprob[part] = top.ids, top.logits / temperature - logsumexp[part]
        ctx.save_for_backward(hidden, weight, ids, local, is_local, logprob, logsumexp, entropy)
        ctx.temperature, ctx.kernels, ctx.dtype = temperature, kernels, dtype
        ctx.mark_non_differentiable(sum_pi_squared, topk_ids, topk_logprob)
        return logprob, entropy, sum_pi_squared, topk_ids, topk_logprob

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, ids, local, is_local, logprob, logsumexp, entropy = ctx.saved_tensors
        grad_logprob, grad_entropy, *_ = gradients
        if grad_logprob is None:
            grad_logprob = torch.zeros(local.shape, device=hidden.device)
        grad_logprob = grad_logprob.float()
        sum_grad_logprob = grad_logprob.sum(-1, keepdim=True)
        entropy = entropy.unsqueeze(-1)
        if grad_entropy is not None:
            grad_entropy = grad_entropy.float().unsqueeze(-1)
        grad_selected = (
            _selected_gradient(ids, logprob, grad_logprob, entropy, grad_entropy) / ctx.temperature
        )
        hidden_gradient = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        # By tiles of vocabulary entries: one product over all tokens gives a tile's full gradient. Over
        # several parts of the tokens it is accumulated in float32 in any compute dtype.
        parts = _slices(len(hidden), MAX_TOKENS)
        accumulation = weight.dtype if len(parts) == 1 else torch.float32
        weight_gradient = torch.zeros(weight.shape, dtype=accumulation, device=weight.device)
        for part in parts:
            tokens = hidden[part].to(ctx.dtype)
            for tile in _slices(len(weight), _chunk_size(CHUNK_BYTES // 2, tokens, len(tokens))):
                cast = weight[tile].to(ctx.dtype)
                gradient = ctx.kernels.gradient(
                    tokens @ cast.t(),
                    ctx.temperature,
                    logsumexp[part],
                    sum_grad_logprob[part],
                    entropy[part],
                    None if grad_entropy is None else grad_entropy[part],
                )
                inside = is_local[part] & (local[part] >= tile.start) & (local[part] < tile.stop)
                row, candidate = inside.nonzero(as_tuple=True)
                column = local[part][row, candidate] - tile.start
                gradient[row, column] = grad_selected[part][row, candidate].to(gradient.dtype)
                hidden_gradient[part] += gradient @ cast
                weight_gradient[tile] += gradient.t() @ tokens
        return hidden_gradient.to(hidden.dtype), weight_gradient.to(weight.dtype), *[None] * 7


def _selected_gradient(
    ids: torch.Tensor,
    logprob: torch.Tensor,
    grad_logprob: torch.Tensor,
    entropy: torch.Tensor,
    grad_entropy: torch.Tensor | None,
) -> torch.Tensor:
    """Returns [S, K] float32 d loss / d z at ``ids``: ``g - pi (sum of g + g_H (log pi + H))``.

    In lower precision both terms would cancel where pi is nearly 1.

    Args:
        ids: [S, K]; an id that occurs twice gets both gradients.
        logprob: [S, K] at ids.
        grad_logprob: [S, K] g.
        entropy: [S, 1] H.
        grad_entropy: [S, 1] g_H; None: 0.
    """
    slope = grad_logprob.sum(-1, keepdim=True)
    if grad_entropy is not None:
        slope = slope + grad_entropy * (logprob + entropy)
    if ids.shape[1] > 1 and len(ids) > 0:
        parts = _slices(len(ids), max(1, PAIRS_PER_CHUNK // ids.shape[1] ** 2))
        grad_logprob = torch.cat([_sum_over_duplicates(ids[part], grad_logprob[part]) for part in parts])
    return grad_logprob - logprob.exp() * slope


def _sum_over_duplicates(ids: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Returns [S, K] the sum of ``gradient`` [S, K] over all columns of the row that hold the same id."""
    same = (ids.unsqueeze(-1) == ids.unsqueeze(-2)).float()
    return torch.einsum("skj,sj->sk", same, gradient)


def _chunk_size(size: int, weight: torch.Tensor, width: int) -> int:
    """Returns how many rows (or columns) of logits with ``width`` numbers each fit into ``size`` bytes."""
    size *= 1 if weight.device.type == "cpu" else 8
    return max(1, size // (max(1, width) * weight.element_size()))


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _reduce(rows: RowStatistics, selected: torch.Tensor, group: Group) -> tuple[RowStatistics, torch.Tensor]:
    """Returns both, reduced over the ranks that shard the vocabulary: one max, one sum."""
    row_max = rows.row_max.clone()
    torch.distributed.all_reduce(row_max, torch.distributed.ReduceOp.MAX, group)
    scale = (rows.row_max - row_max).exp()
    packed = torch.cat(
        [rows.sum_exp * scale, rows.sum_exp_logit * scale, rows.sum_sq_exp * scale.square(), selected], dim=-1
    )
    torch.distributed.all_reduce(packed, group=group)
    return RowStatistics(row_max, packed[:, :1], packed[:, 1:2], packed[:, 2:3]), packed[:, 3:]
