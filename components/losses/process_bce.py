"""Process reward model: binary cross-entropy at the ends of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from titanrl.ops.masked import where0
from titanrl.protocols import TokenLoss
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "process_bce")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessBCE:
    """Returns ``softplus(v) - y v``, [B, L]: cross-entropy of sig(v) with the step label y = token_reward.

    loss_mask selects the step ends. Labels lie in [0, 1]; soft ones (Monte-Carlo success fractions) are
    allowed. Masked places get 0.
    Metrics: accuracy ([v > 0] = [y > 1/2]).

    Source: Let's verify step by step 2305.20050; soft labels: Math-Shepherd 2312.08935.
    """

    in_keys: ClassVar[tuple[str, ...]] = ("token_reward",)
    needs: ClassVar[tuple[str, ...]] = ("value",)

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        assert policy.value is not None
        mask = batch["loss_mask"]
        value, label = where0(mask, policy.value), where0(mask, batch["token_reward"])
        loss = where0(mask, torch.nn.functional.softplus(value) - label * value)
        right = mask & ((value > 0) == (label > 0.5))
        return TokenLoss(loss, {"accuracy": right.float()})
