"""GiGPO: advantages of whole episodes plus advantages of turns that started in the same state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.groups import group_index, relative_to_group
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "gigpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class GiGPO:
    """Episode advantage plus step advantage of a turn, one row per turn, on its loss tokens, [N, L].

        A_i = episode_weight N(reward, over the episodes of the group)
              + step_weight N(R, over the rows of the group in the same state)
        R_i = step_reward_i + gamma R_(next turn of the episode)
        N(x) = (x - mean) / (sd + eps),  sd unbiased

    Every episode counts once, however many turns it has. A state that an episode visits twice has two
    members. States are compared within a group only. Fewer than two members or equal values give 0. An
    unscored row (NaN) is part of no statistic and no return, and gets 0. The order of the rows does not
    matter. Masked positions get 0.

    Source: GiGPO 2505.10978.
    """

    gamma: Annotated[float, Range("[0, 1]")] = 0.95
    """Discount per turn."""
    episode_weight: Annotated[float, Range("[0, inf)")] = 1.0
    """Factor of the episode advantage."""
    step_weight: Annotated[float, Range("[0, inf)")] = 1.0
    """Factor of the step advantage."""
    std: bool = True
    """Divide by the standard deviation."""
    eps: Annotated[float, Range("[0, inf)")] = 1e-6
    """Added to the standard deviation."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward", "episode_id", "turn_id", "state_id", "step_reward")
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        reward, group_id = batch["reward"].double(), batch["group_id"]
        scored = ~reward.isnan()
        episode, num_episodes = _joint_index(group_id, batch["episode_id"])
        # Every row of an episode has its reward; the maximum depends on no order and on no rounding.
        of_rows = torch.where(scored, reward, -torch.inf)
        of_episodes = reward.new_full((num_episodes,), -torch.inf)
        of_episodes = of_episodes.scatter_reduce_(0, episode, of_rows, "amax")
        group = group_id.new_zeros(num_episodes).scatter_(0, episode, group_id)
        has_score = of_episodes.isfinite()
        of_episode = self._normalized(torch.where(has_score, of_episodes, torch.nan), group)

        steps = self._returns(batch["step_reward"].double(), episode, batch["turn_id"], scored)
        state, _ = _joint_index(group_id, batch["state_id"])
        of_step = self._normalized(torch.where(scored, steps, torch.nan), state)
        advantage = self.episode_weight * of_episode[episode] + self.step_weight * of_step
        return Advantages(to_tokens(torch.where(scored, advantage, 0.0), batch["loss_mask"]))

    def _normalized(self, score: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        return relative_to_group(score, group, "group" if self.std else "none", self.eps)

    def _returns(
        self, step_reward: torch.Tensor, episode: torch.Tensor, turn: torch.Tensor, scored: torch.Tensor
    ) -> torch.Tensor:
        """Returns [N] the discounted sum of a turn's and its episode's later step rewards; 0 if unscored."""
        result = torch.zeros_like(step_reward)
        following: dict[int, float] = {}
        order = turn.argsort(descending=True, stable=True)
        for row in order[scored[order]]:
            key = int(episode[row])
            following[key] = float(step_reward[row]) + self.gamma * following.get(key, 0.0)
            result[row] = following[key]
        return result


def _joint_index(group_id: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Returns ([N] index of each row's pair of ids, number of different pairs)."""
    group, _ = group_index(group_id)
    inner, num_inner = group_index(other)
    return group_index(group * num_inner + inner)
