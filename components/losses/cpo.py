"""CPO: contrastive preference optimisation, a sigmoid loss plus the likelihood of the chosen response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.preference import per_row, smoothed_sigmoid_loss, split_pairs, valid_pairs
from titanrl.ops.sequence import sequence_mean, sequence_sum
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "cpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class CPO:
    """Sigmoid loss of the pair plus the negative log-likelihood of the chosen response, per pair, [B, 1].

        h    = beta (pc - pr)
        loss = -(1 - e) log sig(h) - e log sig(-h) - nll_coefficient pc/nc,  e = label_smoothing

    No reference policy is needed. pc and pr are the summed log-probs of the chosen (2i) and the rejected
    row (2i + 1) over their loss tokens, nc the number of the chosen row's. Both rows carry the loss of
    their pair; a pair with an empty side gets 0.
    Metrics: preference (the loss without the likelihood term), accuracy (pc > pr), margin = h, [B, 1].

    Source: CPO 2401.08417.
    """

    beta: Annotated[float, Range("(0, inf)")] = 0.1
    """Scale of the margin."""
    nll_coefficient: Annotated[float, Range("[0, inf)")] = 1.0
    """Coefficient of the likelihood term."""
    label_smoothing: Annotated[float, Range("[0, 0.5)")] = 0.0
    """Probability that a label is wrong."""
    in_keys: ClassVar[tuple[str, ...]] = ()
    paired: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        valid = valid_pairs(mask)
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
        return TokenLoss(per_row(loss, valid), {k: per_row(v, valid) for k, v in metrics.items()})
