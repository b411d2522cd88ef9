"""DFT: dynamic fine-tuning, the supervised loss scaled by the token's own probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.ops.masked import where0
from titanrl.protocols import TokenLoss
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "dft")
@dataclass(frozen=True, slots=True, kw_only=True)
class DFT:
    """Negative log-likelihood scaled by the label's probability, ``-sg(exp(l)) l``, per token, [B, L].

    Masked positions get 0. Metrics: nll = -l in nats, the loss of `sft`.

    Source: DFT 2508.05629.
    """

    in_keys: ClassVar[tuple[str, ...]] = ()

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        logprob = where0(batch["loss_mask"], policy.logprob)
        fixed = logprob.detach()
        return TokenLoss(-fixed.exp() * logprob, {"nll": -fixed})
