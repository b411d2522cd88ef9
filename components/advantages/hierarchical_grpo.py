"""Hierarchical GRPO: agents of an episode are compared within it, other agents across the group."""

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


@register("advantage", "hierarchical_grpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchicalGRPO:
    """Reward minus the mean reward of a row's peers, on its loss tokens, [N, L]; 0 where masked.

        A_i = r_i - mean over peers of r

    Peers are the rows of the same group and agent, and for the agents in `episode_agents` of the same
    episode as well: solvers of one proposed problem are compared with each other, proposers across the
    group. A row without peers, equal rewards and an unscored row (NaN) give 0.

    Source: prime-rl's hierarchical GRPO for proposers and solvers.
    """

    episode_agents: Annotated[tuple[int, ...], Range("[0, inf)")]
    """Values of agent_id that are compared within their episode; may be empty."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward", "episode_id", "agent_id")
    scope: ClassVar[Literal["group", "batch"]] = "group"

    def __call__(self, batch: TensorDict) -> Advantages:
        agent = batch["agent_id"]
        within = torch.isin(agent, agent.new_tensor(self.episode_agents))
        episode, num_episodes = group_index(batch["episode_id"])
        peers, num_agents = group_index(agent)
        group, _ = group_index(batch["group_id"])
        peers = (group * num_agents + peers) * (num_episodes + 1) + torch.where(within, episode + 1, 0)
        advantage = relative_to_group(batch["reward"], peers, "none", 0.0)
        return Advantages(to_tokens(advantage, batch["loss_mask"]))
