"""RLSD: GRPO's advantage, shifted between the tokens of a row by a teacher's opinion of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.groups import Std, relative_to_group
from titanrl.ops.ratio import clamped_log_ratio
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "rlsd")
@dataclass(frozen=True, slots=True, kw_only=True)
class RLSD:
    """GRPO's advantage times a positive factor per token from the teacher's log-ratio, [N, L].

        A_t = A_i ( (1 - lam) + lam clip(exp(sign(A_i) (l_tea - l_old)), 1 - clip, 1 + clip) )

    A_i is the advantage of grpo. The factor is positive, so no token's advantage changes its sign: in good
    rows the tokens that the teacher prefers get more, in bad rows those that it rejects. The log-ratio is
    clamped to [-20, 20] first. Masked positions get 0. The teacher is usually the policy itself with the
    reference answer in its prompt.

    Source: RLSD 2604.03128.
    """

    lam: Annotated[float, Range("[0, 1]")] = 0.5
    """Weight of the teacher's factor; 0 is grpo."""
    clip: Annotated[float, Range("(0, 1)")] = 0.2
    """Distance of the bounds of the teacher's factor from 1."""
    negative_only: bool = False
    """Whether rows with A_i >= 0 keep the advantage of grpo."""
    std: Std = "group"
    """As in grpo."""
    eps: Annotated[float, Range("[0, inf)")] = 1e-6
    """As in grpo."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward", "teacher_logprob", "old_logprob")

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch" if self.std == "batch" else "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        mask = batch["loss_mask"]
        row = relative_to_group(batch["reward"], batch["group_id"], self.std, self.eps)
        advantage = to_tokens(row, mask)
        gap = clamped_log_ratio(batch["teacher_logprob"], batch["old_logprob"], mask)
        factor = (advantage.sign() * gap).exp().clamp(1 - self.clip, 1 + self.clip)
        factor = (1 - self.lam) + self.lam * factor
        if self.negative_only:
            factor = torch.where(advantage < 0, factor, 1.0)
        return Advantages(advantage * factor)
