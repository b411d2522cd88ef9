"""Binary cross-entropy of a process reward model at the ends of steps."""

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
    """Binary cross-entropy between sig(v) and the step label, ``softplus(v) - y v``, per token, [B, L].

    v is policy.value, y the batch key token_reward. loss_mask selects the ends of steps. Labels lie in
    [0, 1]; soft labels (Monte-Carlo success rates) are allowed. Masked positions get 0.
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
        correct = mask & ((value > 0) == (label > 0.5))
        return TokenLoss(loss, {"accuracy": correct.float()})
