"""EMA baseline: the reward minus a running mean of the agent's rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from titanrl.ops.groups import segment_sum
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "ema_baseline")
@dataclass(slots=True, kw_only=True)
class EMABaseline:
    """Reward minus an exponential moving average of the agent's rewards, [N, L]; 0 where masked.

        A_i = r_i - b,   then   b <- decay^n b + (1 - decay^n) mean(r)

    b is the baseline of the row's agent (batch key agent_id; without it there is one agent) before this
    batch, initially 0; n is the number of the agent's scored rows in the batch, so the result does not
    depend on the order of rows. An unscored row (NaN) does not enter the mean and gets 0. The estimator is
    stateful: each call updates b, which every checkpoint contains.

    Source: role-conditioned advantage estimation, 2506.24119.
    """

    decay: Annotated[float, Range("[0, 1)")] = 0.95
    """Decay rate of the baseline per row."""
    baseline: dict[int, float] = field(default_factory=dict, init=False)
    """Running mean of each agent."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward",)
    is_group_relative: ClassVar[bool] = False
    optional_keys: ClassVar[tuple[str, ...]] = ("agent_id",)
    """Batch keys that are read where they are present."""
    scope: ClassVar[Literal["group", "batch"]] = "batch"

    def __call__(self, batch: TensorDict) -> Advantages:
        reward = batch["reward"].double()
        agent = batch.get("agent_id", None)
        agent = torch.zeros_like(batch["group_id"]) if agent is None else agent
        agents, index = torch.unique(agent, return_inverse=True)
        old = reward.new_tensor([self.baseline.get(name, 0.0) for name in agents.tolist()])

        scored = ~reward.isnan()
        reward = torch.where(scored, reward, 0.0)
        count = segment_sum(scored.double(), index, len(agents))
        mean = segment_sum(reward, index, len(agents)) / count.clamp_min(1)
        decay = self.decay**count
        new = decay * old + (1 - decay) * mean
        self.baseline.update(zip(agents.tolist(), new.tolist(), strict=True))

        advantage = torch.where(scored, reward - old[index], 0.0)
        return Advantages(to_tokens(advantage, batch["loss_mask"]))

    def state_dict(self) -> dict[str, Any]:
        """Returns the running means; keys are agent ids as text."""
        return {"baseline": {str(agent): value for agent, value in self.baseline.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the running means that state_dict() returned."""
        self.baseline = {int(agent): float(value) for agent, value in state_dict["baseline"].items()}
