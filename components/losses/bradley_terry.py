"""Reward model on preference pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.errors import check_range
from titanrl.ops.masked import where0
from titanrl.ops.preference import per_row, split_pairs, valid_pairs
from titanrl.ops.sequence import at_last_trainable
from titanrl.protocols import TokenLoss
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "bradley_terry")
@dataclass(frozen=True, slots=True, kw_only=True)
class BradleyTerry:
    """Returns the negative log-likelihood that the chosen row (2i) beats the rejected one (2i + 1), [B, 1].

        loss = -log sig(s_c - s_r - margin) + center (s_c + s_r)^2

    The score s is policy.value at the row's last trainable token: by mask, not by pad id. Both rows carry
    the loss of their pair; a pair with an empty side gets 0. A gap of -100 gives 100, not inf.
    Metrics: accuracy (s_c > s_r), margin = s_c - s_r - margin, [B, 1].

    Source: InstructGPT 2203.02155 eq. 1; margin: Llama 2 2307.09288 eq. 2; center: 2312.09244.
    """

    center: float = 0.0
    """Strength with which the mean score of a pair is held at 0, >= 0; TRL: 0.01."""
    use_margin: bool = False
    """Whether the batch key `margin` (human margin of the pair) is subtracted from the gap."""
    needs: ClassVar[tuple[str, ...]] = ("value",)
    paired: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range(self, "center", "[0, inf)")

    @property
    def in_keys(self) -> tuple[str, ...]:
        return ("margin",) if self.use_margin else ()

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        assert policy.value is not None
        mask = batch["loss_mask"]
        live = valid_pairs(mask)
        chosen, rejected = split_pairs(at_last_trainable(policy.value, mask)[:, None])
        gap = chosen - rejected
        if self.use_margin:
            gap = gap - where0(live, split_pairs(batch["margin"][:, None])[0])
        loss = self.center * (chosen + rejected).square() - torch.nn.functional.logsigmoid(gap)
        metrics = {"accuracy": (chosen > rejected).float(), "margin": gap.detach()}
        return TokenLoss(per_row(loss, live), {k: per_row(v, live) for k, v in metrics.items()})
