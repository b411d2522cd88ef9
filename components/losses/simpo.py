"""SimPO: simple preference optimisation on length-normalised log-probs with a target margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.one_minus_exp import one_minus_exp
from titanrl.ops.preference import per_row, smoothed_sigmoid_loss, split_pairs, valid_pairs
from titanrl.ops.sequence import sequence_mean
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


EXPONENT_CLAMP = 80.0
"""Bound of AlphaPO's exponent, so that float32 stays finite."""


@register("loss", "simpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class SimPO:
    """Sigmoid loss of the length-normalised margin, per pair, [B, 1].

        h    = beta (u(pc/nc) - u(pr/nr)) - gamma
        u(x) = x,  or (1 - exp(-alpha x)) / alpha where alpha > 0
        loss = -(1 - e) log sig(h) - e log sig(-h),  e = label_smoothing

    No reference policy is needed. pc/nc and pr/nr are the mean log-probs of the chosen (2i) and the
    rejected row (2i + 1) over their loss tokens. gamma is the target margin itself; the paper states the
    ratio gamma/beta, 0.25 at these defaults. Both rows carry the loss of their pair; a pair with an empty
    side gets 0. The exponent is clamped at 80.
    Metrics: accuracy (u(pc/nc) > u(pr/nr)), margin = h, [B, 1].

    Source: SimPO 2405.14734; AlphaPO 2501.03884 (alpha).
    """

    beta: Annotated[float, Range("(0, inf)")] = 2.0
    """Scale of the margin."""
    gamma: Annotated[float, Range("[0, inf)")] = 0.5
    """Target margin."""
    alpha: Annotated[float, Range("[0, inf)")] = 0.0
    """Shape of AlphaPO's reward; 0 is SimPO."""
    label_smoothing: Annotated[float, Range("[0, 0.5)")] = 0.0
    """Probability that a label is wrong."""
    in_keys: ClassVar[tuple[str, ...]] = ()
    paired: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        valid = valid_pairs(mask)
        mean = sequence_mean(policy.logprob, mask)
        if self.alpha:
            mean = one_minus_exp((-self.alpha * mean).clamp(max=EXPONENT_CLAMP)) / self.alpha
        chosen, rejected = split_pairs(mean)
        logit = self.beta * (chosen - rejected) - self.gamma
        loss = smoothed_sigmoid_loss(logit, self.label_smoothing)
        metrics = {"accuracy": (chosen > rejected).float(), "margin": logit.detach()}
        return TokenLoss(per_row(loss, valid), {k: per_row(v, valid) for k, v in metrics.items()})
