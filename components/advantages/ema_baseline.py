"""Role-conditioned advantage: the reward against a running mean of its agent's rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from titanrl.errors import check_range
from titanrl.ops.groups import segment_sum
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "ema_baseline")
@dataclass(slots=True, kw_only=True)
class EMABaseline:
    """Returns rewards less their agent's running mean on every trainable token, [N, L]; 0 where masked.

        A_i = r_i - b,   then   b <- decay^n b + (1 - decay^n) mean(r)

    b is the baseline of the row's agent (agent_id; absent: one agent) as it was before this batch, 0 at
    first; n counts the agent's scored rows here, so the result does not depend on the order of rows. An
    unscored row (NaN) is left out and gets 0. Stateful: each call moves b, which is part of every checkpoint.

    Source: 2506.24119.
    """

    decay: float = 0.95
    """Share of the baseline that one row leaves, in [0, 1)."""
    baseline: dict[int, float] = field(default_factory=dict, init=False)
    """Agent -> its running mean."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward",)
    is_group_relative: ClassVar[bool] = False
    optional_keys: ClassVar[tuple[str, ...]] = ("agent_id",)
    """Read where the batch has them."""
    scope: ClassVar[Literal["group", "batch"]] = "batch"
    is_stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range(self, "decay", "[0, 1)")

    def __call__(self, batch: TensorDict) -> Advantages:
        reward = batch["reward"].double()
        agent = batch.get("agent_id", None)
        agent = torch.zeros_like(batch["group_id"]) if agent is None else agent
        agents, index = torch.unique(agent, return_inverse=True)
        before = reward.new_tensor([self.baseline.get(name, 0.0) for name in agents.tolist()])

        scored = ~reward.isnan()
        reward = torch.where(scored, reward, 0.0)
        count = segment_sum(scored.double(), index, len(agents))
        mean = segment_sum(reward, index, len(agents)) / count.clamp_min(1)
        kept = self.decay**count
        after = kept * before + (1 - kept) * mean
        self.baseline.update(zip(agents.tolist(), after.tolist(), strict=True))

        advantage = torch.where(scored, reward - before[index], 0.0)
        return Advantages(to_tokens(advantage, batch["loss_mask"]))

    def state_dict(self) -> dict[str, Any]:
        """Returns the running means, keyed by the agent's number as text."""
        return {"baseline": {str(agent): value for agent, value in self.baseline.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what state_dict() returned."""
        self.baseline = {int(agent): float(value) for agent, value in state_dict["baseline"].items()}
