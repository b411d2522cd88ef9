"""REINFORCE: the plain policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.ops.masked import where0
from titanrl.protocols import TokenLoss
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "reinforce")
@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce:
    """Policy gradient without importance ratio, ``-A l``, per token, [B, L].

    It is unbiased only for samples of the current policy. Masked positions get 0.

    Source: Williams 1992; also the loss of GPG 2504.02546 and ReMax 2310.10505.
    """

    in_keys: ClassVar[tuple[str, ...]] = ("advantage",)
    is_zero_without_advantage: ClassVar[bool] = True

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        return TokenLoss(-where0(mask, batch["advantage"]) * where0(mask, policy.logprob), {})
