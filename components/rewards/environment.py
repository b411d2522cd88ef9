"""Rewards of an environment: of the whole rollout, and of its turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("reward", "environment")
@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReward:
    """Reward that the environment gave to the whole rollout, or to the agent's part of it.

    A rollout whose environment raised, timed out or gave no reward gets ``failure_score``, and is counted.
    """

    output: str = ""
    """Name of one of the environment's further rewards. Default: its reward."""
    in_keys: ClassVar[tuple[str | tuple[str, ...], ...]] = (("text", "outcome"),)

    def scores(self, batch: TensorDict) -> list[float | str | None]:
        """Returns the reward of each row, or the reason why it has none."""
        return [self._score(outcome) for outcome in batch["text", "outcome"]]

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [N] float32, NaN where there is no reward."""
        scores = self.scores(batch)
        return torch.tensor([float("nan") if isinstance(each, str | None) else each for each in scores])

    def _score(self, outcome: dict[str, Any]) -> float | str | None:
        if outcome["error"]:
            return str(outcome["error"])
        value = outcome["rewards"].get(self.output) if self.output else outcome["reward"]
        if value is None:
            return f"the environment gave no reward {self.output!r}" if self.output else "it gave no reward"
        return float(value)


@register("reward", "environment_turns")
@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentTurns:
    """Reward of each turn of a rollout, at the turn's last token.

    Its value is the sum over the turns. A rollout without rewards of its turns gets ``failure_score``.
    """

    in_keys: ClassVar[tuple[str | tuple[str, ...], ...]] = (("text", "outcome"), "loss_mask")
    per_token: ClassVar[bool] = True

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [N, L] float32, 0 where masked; NaN in rows without rewards of turns."""
        rewards = torch.zeros(batch["loss_mask"].shape)
        for row, (outcome, mask) in enumerate(zip(batch["text", "outcome"], batch["loss_mask"], strict=True)):
            places = mask.nonzero().flatten()
            if not outcome["turn_rewards"]:
                rewards[row, places[-1:]] = torch.nan
                continue
            ends = torch.tensor(outcome["turn_tokens"]).cumsum(0) - 1
            rewards[row, places[ends]] = torch.tensor(outcome["turn_rewards"], dtype=torch.float32)
        return rewards
