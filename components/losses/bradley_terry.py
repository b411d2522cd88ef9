"""Bradley-Terry loss of a reward model on preference pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from titanrl.ops.masked import where0
from titanrl.ops.preference import per_row, split_pairs, valid_pairs
from titanrl.ops.sequence import at_last_loss_token
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "bradley_terry")
@dataclass(frozen=True, slots=True, kw_only=True)
class BradleyTerry:
    """Negative log-likelihood that the chosen response beats the rejected one, per pair, [B, 1].

        loss = -log sig(s_c - s_r - margin) + center (s_c + s_r)^2

    Rows 2i and 2i + 1 are the chosen and the rejected response. The score s is policy.value at the row's
    last loss token, which the mask decides, not the pad id. Both rows carry the loss of their pair; a pair
    with an empty side gets 0. The loss is finite for any score difference: -100 gives 100.
    Metrics: accuracy (s_c > s_r), margin = s_c - s_r - margin, [B, 1].

    Source: InstructGPT 2203.02155 eq. 1; margin: Llama 2 2307.09288 eq. 2; center: 2312.09244.
    """

    center: Annotated[float, Range("[0, inf)")] = 0.0
    """Coefficient of the penalty that keeps the mean score of a pair near 0; TRL uses 0.01."""
    use_margin: bool = False
    """Subtract the batch key `margin` (the annotators' margin of the pair) from the score difference."""
    needs: ClassVar[tuple[str, ...]] = ("value",)
    paired: ClassVar[bool] = True

    @property
    def in_keys(self) -> tuple[str, ...]:
        return ("margin",) if self.use_margin else ()

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        assert policy.value is not None
        mask = batch["loss_mask"]
        valid = valid_pairs(mask)
        chosen, rejected = split_pairs(at_last_loss_token(policy.value, mask)[:, None])
        difference = chosen - rejected
        if self.use_margin:
            difference = difference - where0(valid, split_pairs(batch["margin"][:, None])[0])
        loss = self.center * (chosen + rejected).square() - torch.nn.functional.logsigmoid(difference)
        metrics = {"accuracy": (chosen > rejected).float(), "margin": difference.detach()}
        return TokenLoss(per_row(loss, valid), {k: per_row(v, valid) for k, v in metrics.items()})
