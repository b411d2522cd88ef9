"""Simple preference optimisation: length-normalised log-probs, a margin, no reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.errors import check_range
from titanrl.ops.one_minus_exp import one_minus_exp
from titanrl.ops.preference import per_row, smoothed_sigmoid_loss, split_pairs, valid_pairs
from titanrl.ops.sequence import sequence_mean
from titanrl.protocols import TokenLoss
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


EXPONENT_CLAMP = 80.0
"""Bound of AlphaPO's exponent, so that float32 stays finite."""


@register("loss", "simpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class SimPO:
    """Returns the sigmoid loss of the length-normalised margin, [B, 1].

        h    = beta (u(pc/nc) - u(pr/nr)) - gamma
        u(x) = x,  or (1 - exp(-alpha x)) / alpha where alpha > 0
        loss = -(1 - e) log sig(h) - e log sig(-h),  e = label_smoothing

    pc/nc and pr/nr are the mean log-probs of the chosen (2i) and the rejected row (2i + 1) over their
    trainable tokens. gamma is neither divided nor multiplied by beta (the paper's gamma/beta ratio is .25
    at these defaults). Both rows carry the loss of their pair; a pair with an empty side gets 0. The
    exponent is clamped at 80.
    Metrics: accuracy (u(pc/nc) > u(pr/nr)), margin = h, [B, 1].

    Source: SimPO 2405.14734; AlphaPO 2501.03884 (alpha).
    """

    beta: float = 2.0
    """Scale of the margin, > 0."""
    gamma: float = 0.5
    """Target margin, >= 0."""
    alpha: float = 0.0
    """Shape of AlphaPO's reward, >= 0; 0 is SimPO."""
    label_smoothing: float = 0.0
    """Probability that a label is wrong, in [0, 0.5)."""
    in_keys: ClassVar[tuple[str, ...]] = ()
    paired: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range(self, "beta", "(0, inf)")
        check_range(self, "gamma", "[0, inf)")
        check_range(self, "alpha", "[0, inf)")
        check_range(self, "label_smoothing", "[0, 0.5)")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        live = valid_pairs(mask)
        mean = sequence_mean(policy.logprob, mask)
        if self.alpha:
            mean = one_minus_exp((-self.alpha * mean).clamp(max=EXPONENT_CLAMP)) / self.alpha
        chosen, rejected = split_pairs(mean)
        logit = self.beta * (chosen - rejected) - self.gamma
        loss = smoothed_sigmoid_loss(logit, self.label_smoothing)
        metrics = {"accuracy": (chosen > rejected).float(), "margin": logit.detach()}
        return TokenLoss(per_row(loss, live), {k: per_row(v, live) for k, v in metrics.items()})
