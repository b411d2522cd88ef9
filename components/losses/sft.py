"""Supervised fine-tuning loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.ops.masked import where0
from titanrl.protocols import TokenLoss
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "sft")
@dataclass(frozen=True, slots=True, kw_only=True)
class SFT:
    """Negative log-likelihood of the labels, ``-l``, in nats per token, [B, L].

    loss_mask excludes the prompt; position t scores labels[t], so labels need no further shift. Masked
    positions get 0.

    Source: maximum likelihood.
    """

    in_keys: ClassVar[tuple[str, ...]] = ()

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        return TokenLoss(-where0(batch["loss_mask"], policy.logprob), {})
