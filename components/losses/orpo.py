"""ORPO: odds-ratio preference optimisation, the supervised loss plus a log-odds margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.one_minus_exp import one_minus_exp
from titanrl.ops.preference import per_row, split_pairs, valid_pairs
from titanrl.ops.sequence import sequence_mean
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "orpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class ORPO:
    """Supervised loss of the chosen response plus the odds-ratio loss of the pair, per pair, [B, 1].

        loss  = -a - beta log sig(lo(a) - lo(b)),  a = pc/nc,  b = pr/nr
        lo(x) = x - log(1 - exp(x)),  x at most -1e-6

    No reference policy is needed. a and b are the mean log-probs of the chosen (2i) and the rejected row
    (2i + 1) over their loss tokens. Both rows carry the loss of their pair; a pair with an empty side gets
    0. Example: a = -0.5, b = -1 and beta = 0.1 give 0.53203.
    Metrics: preference (the odds-ratio loss without beta and without the supervised term), accuracy (a >
    b), margin = lo(a) - lo(b), [B, 1].

    Source: ORPO 2403.07691.
    """

    beta: Annotated[float, Range("[0, inf)")] = 0.1
    """Coefficient of the odds-ratio loss (lambda in the paper)."""
    in_keys: ClassVar[tuple[str, ...]] = ()
    paired: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        valid = valid_pairs(mask)
        mean = sequence_mean(policy.logprob, mask)
        below = mean.clamp(max=-1e-6)
        log_odds = below - one_minus_exp(below).log()
        chosen, rejected = split_pairs(mean)
        chosen_odds, rejected_odds = split_pairs(log_odds)
        preference = -torch.nn.functional.logsigmoid(chosen_odds - rejected_odds)
        metrics = {
            "preference": preference.detach(),
            "accuracy": (chosen > rejected).float(),
            "margin": (chosen_odds - rejected_odds).detach(),
        }
        loss = self.beta * preference - chosen
        return TokenLoss(per_row(loss, valid), {k: per_row(v, valid) for k, v in metrics.items()})
