"""CoDaPO: GRPO's advantage, weighted by the policy's confidence and the difficulty of the question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.groups import GroupScores, Std, relative_to_group
from titanrl.ops.masked import masked_mean
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "codapo")
@dataclass(frozen=True, slots=True, kw_only=True)
class CoDaPO:
    """GRPO's advantage times a weight of the group, on the loss tokens of a row, [N, L].

        A = grpo * (c (1 - 4 (d - 1/2)^2) + offset)
        c = exp(mean over rows of mean_i old_logprob),   d = 1 - share of rows with reward >= correct

    The weight is largest where half of the responses are right. Both statistics are over the scored rows of
    the group; rows without a loss token do not enter c. A group of one, equal rewards and an unscored row
    (NaN) give 0. Masked positions get 0.

    Source: CoDaPO 2606.07950, the weights; its second pass over hard questions is a matter of the loop.
    """

    std: Std = "group"
    """As in grpo."""
    eps: Annotated[float, Range("[0, inf)")] = 1e-6
    """As in grpo."""
    offset: Annotated[float, Range("[0, inf)")] = 0.1
    """Added to the weight."""
    correct: Annotated[float, Range("(-inf, inf)")] = 1.0
    """Reward from which a response counts as right."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward", "old_logprob")

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch" if self.std == "batch" else "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        mask, reward, group_id = batch["loss_mask"], batch["reward"], batch["group_id"]
        groups = GroupScores.of(reward, group_id)
        difficulty = 1 - groups.sum((groups.score >= self.correct).double()) / groups.count.clamp_min(1)
        confidence = masked_mean(batch["old_logprob"].double(), mask, -1)
        confidence = torch.where(groups.scored & mask.any(-1), confidence, torch.nan)
        confidence = GroupScores.of(confidence, group_id).mean().exp()
        weight = confidence * (1 - 4 * (difficulty - 0.5).square()) + self.offset
        advantage = relative_to_group(reward, group_id, self.std, self.eps)
        return Advantages(to_tokens(advantage * weight, mask))
