"""Teacher KL: on-policy distillation by the log-ratio of teacher and policy per token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from titanrl.ops.masked import where0
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "teacher_kl")
@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherKL:
    """Log-prob of the teacher minus that of the policy, per token, [N, L]; 0 where masked.

        A_t = coefficient clip(teacher_logprob_t - old_logprob_t, -clip, clip)

    This is the reverse-KL reward of on-policy distillation. It needs no groups and no rewards.

    Source: on-policy distillation, 2306.13649 with reverse KL; as a reward in MiniLLM 2306.08543.
    """

    coefficient: Annotated[float, Range("(-inf, inf)")] = 1.0
    """Factor of every advantage."""
    clip: Annotated[float, Range("(0, inf]")] = math.inf
    """Bound of the log-ratio, nats."""
    in_keys: ClassVar[tuple[str, ...]] = ("teacher_logprob", "old_logprob")
    is_group_relative: ClassVar[bool] = False
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        mask = batch["loss_mask"]
        difference = where0(mask, batch["teacher_logprob"]) - where0(mask, batch["old_logprob"])
        return Advantages(self.coefficient * difference.clamp(-self.clip, self.clip))
