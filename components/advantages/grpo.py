"""GRPO: the score relative to the mean of its group, in units of a standard deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from titanrl.ops.groups import Std, relative_to_group
from titanrl.ops.scores import row_score, to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "grpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO:
    """Group-relative advantage, the same on every loss token of a row, [N, L]; 0 where masked.

        A_i = (s_i - b_i) / (sd + eps)

    b_i is the mean of the group or of its other rows. sd is the standard deviation over the group, over all
    scored rows of the batch, or over the other rows of the group; `std = "none"` does not divide (Dr.
    GRPO). A group consists of the rows with the same group_id, in any number and order. Equal scores in the
    group, a group of one and an unscored row (NaN) give exactly 0, in float32 too. With leave-one-out,
    there is no division where all other scores are equal. A fully masked row still counts in its group.

    Source: GRPO 2402.03300 section 4.1; Dr. GRPO 2503.20783. Elsewhere: eps 1e-4 (TRL), 1e-5 (AReaL), 1e-9
    (OpenRLHF); population standard deviation (torchtitan); leave-one-out mean and standard deviation
    (NeMo-RL).
    """

    std: Std = "group"
    """Rows over which the standard deviation is taken; none: no division."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """Mean of the group, or of the other rows of the group."""
    unbiased: bool = True
    """Divide variances by n - 1 instead of n."""
    eps: Annotated[float, Range("[0, inf)")] = 1e-6
    """Added to the standard deviation, outside its root."""
    source: Literal["reward", "token_reward"] = "reward"
    """Score of a row: its reward, or the sum of its token rewards, which includes the KL penalty in the
    reward."""

    @property
    def in_keys(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch" if self.std == "batch" else "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        advantage = relative_to_group(
            row_score(batch, self.source),
            batch["group_id"],
            self.std,
            self.eps,
            leave_one_out=self.baseline == "leave_one_out",
            unbiased=self.unbiased,
        )
        return Advantages(to_tokens(advantage, batch["loss_mask"]))
