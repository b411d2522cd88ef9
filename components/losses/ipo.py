"""IPO: identity preference optimisation, a regression of the pair's margin on a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from titanrl.ops.preference import per_row, split_pairs, valid_pairs
from titanrl.ops.ratio import log_ratio
from titanrl.ops.sequence import sequence_mean, sequence_sum
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "ipo")
@dataclass(frozen=True, slots=True, kw_only=True)
class IPO:
    """Squared distance of the pair's margin from its target, per pair, [B, 1].

        mean: loss = (c/nc - r/nr - 1/(2 beta))^2
        sum:  loss = (c - r - 1/(2 beta))^2

    c and r are the sums of l - l_ref over the loss tokens of the chosen (2i) and the rejected row (2i + 1),
    nc and nr their numbers of loss tokens; policy and reference are reduced the same way. Both rows carry
    the loss of their pair; a pair with an empty side gets 0. Metrics: accuracy (margin > 0), margin, [B,
    1].

    Source: 2310.12036. The mean per token is the form that its authors confirmed; OpenRLHF uses the sum.
    """

    beta: Annotated[float, Range("(0, inf)")] = 0.1
    """Strength of the regularisation towards the reference policy: the target margin is 1 / (2 beta)."""
    reduction: Literal["mean", "sum"] = "mean"
    """Reduction of a row's log-ratios to one number."""
    in_keys: ClassVar[tuple[str, ...]] = ("ref_logprob",)
    paired: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        valid = valid_pairs(mask)
        difference = log_ratio(policy.logprob, batch["ref_logprob"], mask)
        reduce = sequence_mean if self.reduction == "mean" else sequence_sum
        chosen, rejected = split_pairs(reduce(difference, mask))
        margin = chosen - rejected
        loss = (margin - 1 / (2 * self.beta)).square()
        metrics = {"accuracy": (margin > 0).float(), "margin": margin.detach()}
        return TokenLoss(per_row(loss, valid), {k: per_row(v, valid) for k, v in metrics.items()})
