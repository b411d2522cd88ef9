"""IW-OPD: on-policy distillation that gives the early tokens of a response more weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.masked import where0
from titanrl.ops.ratio import log_ratio
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "iw_opd")
@dataclass(frozen=True, slots=True, kw_only=True)
class IWOPD:
    """Policy gradient on the teacher's log-ratio, weighted by the position of the disagreement, [B, L].

        loss = -sg(w a) l,   a = l_tea - l_old
        w_k  = 1 + gamma (1 - sum_(j<k) |a_j| / max(sum_j |a_j|, eps))

    Sums run over the loss tokens of the row, so w falls from 1 + gamma at the first token towards 1. The
    advantage is not read. Masked positions get 0. Metrics: gap (a).

    Source: IW-OPD 2606.22600.
    """

    gamma: Annotated[float, Range("[0, inf)")] = 0.5
    """Additional weight of the first token."""
    eps: Annotated[float, Range("(0, inf)")] = 1e-8
    """Lower bound of the row's total disagreement, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("teacher_logprob", "old_logprob")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        gap = log_ratio(batch["teacher_logprob"], batch["old_logprob"], mask)
        distance = gap.double().abs()
        before = distance.cumsum(-1) - distance
        share = before / distance.sum(-1, keepdim=True).clamp_min(self.eps)
        weight = (1 + self.gamma * (1 - share)).to(gap.dtype)
        return TokenLoss(-weight * gap * where0(mask, policy.logprob), {"gap": gap})
