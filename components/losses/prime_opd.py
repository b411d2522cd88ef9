"""On-policy distillation of prime-rl: the teacher's log-ratio under a ratio, a mask and a penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.masked import where0
from titanrl.ops.ratio import LOG_RATIO_CLAMP, approx_kl, clamped_log_ratio
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "prime_opd")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrimeOPD:
    """Teacher's log-ratio as the advantage of an importance-weighted policy gradient, per token, [B, L].

        loss = -sg(keep (l_tea - l)) rho + penalty d^2
        keep = exp(l) - exp(l_old) >= -low,   d = clip(l - l_old, -c, c),   rho = exp(d)

    rho carries the gradient, the log-ratio of the teacher does not. The penalty also applies to tokens that
    are not kept. The advantage is not read. Masked positions get 0. Metrics: clip_fraction (not keep),
    approx_kl, gap (l_tea - l).

    Source: prime-rl's distillation loss. There l_old is the sampler's: [algorithm] old_logprob = "sampler".
    """

    low: Annotated[float, Range("(0, inf]")] = 0.2
    """Largest decrease of a token's probability."""
    penalty: Annotated[float, Range("[0, inf)")] = 1e-3
    """Coefficient of the squared log-ratio."""
    log_ratio_clamp: Annotated[float, Range("(0, inf)")] = LOG_RATIO_CLAMP
    """Bound c of the log-ratio, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("teacher_logprob", "old_logprob")

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        now, old = where0(mask, policy.logprob.detach()), where0(mask, batch["old_logprob"])
        clamped = clamped_log_ratio(policy.logprob, batch["old_logprob"], mask, self.log_ratio_clamp)
        keep = now.exp() - old.exp() >= -self.low
        gap = where0(mask, batch["teacher_logprob"]) - now
        loss = -where0(keep, gap) * clamped.exp() + self.penalty * clamped.square()
        metrics = {"clip_fraction": (~keep).float(), "approx_kl": approx_kl(clamped), "gap": gap}
        return TokenLoss(where0(mask, loss), metrics)
