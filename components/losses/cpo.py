"""Contrastive preference optimisation: sigmoid loss plus likelihood of the chosen row, no reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.errors import check_range
from titanrl.ops.preference import per_row, smoothed_sigmoid_loss, split_pairs, valid_pairs
from titanrl.ops.sequence import sequence_mean, sequence_sum
from titanrl.protocols import TokenLoss
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "cpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class CPO:
    """Returns the sigmoid loss of the pair plus the negative log-likelihood of its chosen row, [B, 1].

        h    = beta (pc - pr)
        loss = -(1 - e) log sig(h) - e log sig(-h) - nll_coefficient pc/nc,  e = label_smoothing

    pc and pr are the summed log-probs of the chosen (2i) and the rejected row (2i + 1) over their trainable
    tokens. Both rows carry the loss of their pair; a pair with an empty side gets 0.
    Metrics: preference (the loss without the likelihood part), accuracy (pc > pr), margin = h, [B, 1].

    Source: CPO 2401.08417.
    """

    beta: float = 0.1
    """Scale of the margin, > 0."""
    nll_coefficient: float = 1.0
    """Weight of the likelihood part, >= 0."""
    label_smoothing: float = 0.0
    """Probability that a label is wrong, in [0, 0.5)."""
    in_keys: ClassVar[tuple[str, ...]] = ()
    paired: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range(self, "beta", "(0, inf)")
        check_range(self, "nll_coefficient", "[0, inf)")
        check_range(self, "label_smoothing", "[0, 0.5)")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        live = valid_pairs(mask)
        chosen, rejected = split_pairs(sequence_sum(policy.logprob, mask))
        logit = self.beta * (chosen - rejected)
        preference = smoothed_sigmoid_loss(logit, self.label_smoothing)
        likelihood, _ = split_pairs(sequence_mean(policy.logprob, mask))
        metrics = {
            "preference": preference.detach(),
            "accuracy": (chosen > rejected).float(),
            "margin": logit.detach(),
        }
        loss = preference - self.nll_coefficient * likelihood
        return TokenLoss(per_row(loss, live), {k: per_row(v, live) for k, v in metrics.items()})
