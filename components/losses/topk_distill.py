"""Distillation on the teacher's top-K tokens by forward KL, reverse KL or Jensen-Shannon divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from titanrl.ops.divergence import add_tail, kl_divergence, mixture
from titanrl.ops.masked import where0
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "topk_distill")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopKDistill:
    """Divergence between teacher T and student S on the K candidate tokens, per token, [B, L].

        forward: KL(T || S)
        reverse: KL(S || T)
        jsd:     beta KL(T || M) + (1 - beta) KL(S || M),  M = beta T + (1 - beta) S
        tail:    bucket       append max(1 - sum, 1e-6) to T and to S
                 renormalize  divide each by its sum
                 ignore       no change; exact when K = V

    T = exp(batch candidate_logprob) and S = exp(policy.candidate_logprob), both at batch candidate_ids,
    which the head reads, not this loss. "bucket" is a true divergence of a coarser partition: never
    negative, and 0 only where the two are equal. beta must lie strictly between 0 and 1, because jsd tends
    to 0 at both ends; use forward or reverse there. No gradient reaches the teacher. Masked positions get
    0.
    Metrics: candidate_mass, the student's total probability of the K tokens.

    Source: GKD 2306.13649.
    """

    direction: Literal["forward", "reverse", "jsd"] = "forward"
    """Divergence to minimise."""
    beta: Annotated[float, Range("(0, 1)")] = 0.5
    """Weight of the teacher in the mixture; used by jsd only."""
    tail: Literal["bucket", "renormalize", "ignore"] = "bucket"
    """Treatment of the probability outside the K candidates."""
    in_keys: ClassVar[tuple[str, ...]] = ("candidate_ids", "candidate_logprob")
    needs: ClassVar[tuple[str, ...]] = ("candidate_logprob",)

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        assert policy.candidate_logprob is not None
        mask = batch["loss_mask"]
        teacher = where0(mask[..., None], batch["candidate_logprob"].detach())
        student = where0(mask[..., None], policy.candidate_logprob)
        mass = where0(mask, student.detach().exp().sum(-1))
        if self.tail == "bucket":
            teacher, student = add_tail(teacher), add_tail(student)
        elif self.tail == "renormalize":
            teacher, student = teacher.log_softmax(-1), student.log_softmax(-1)
        if self.direction == "forward":
            loss = kl_divergence(teacher, student)
        elif self.direction == "reverse":
            loss = kl_divergence(student, teacher)
        else:
            middle = mixture(teacher, student, self.beta)
            loss = self.beta * kl_divergence(teacher, middle)
            loss = loss + (1 - self.beta) * kl_divergence(student, middle)
        return TokenLoss(where0(mask, loss), {"candidate_mass": mass})
