"""The [algorithm.reward_scaling] table: normalize rewards by the moments of all rewards so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from titanrl.registry import Range, validated

if TYPE_CHECKING:
    import torch

__all__ = ["RewardScaling"]


@validated
@dataclass(slots=True, kw_only=True)
class RewardScaling:
    """Scales rewards to about unit size, independent of the scale of the reward model.

        r' = clip((r - mean) / std, -clip, clip)

    mean (if it is subtracted) and std (n - 1, float64) are those of all rewards that the run has sampled,
    including this step's, before any filter. While all rewards are equal, they are not divided. Unscored rows
    (NaN) do not enter the moments and remain NaN. Filters and the metrics ``reward/...`` see the original
    rewards; everything after the filters sees the scaled ones, including ``baseline_reward``, the reward of
    the greedy response. KL-in-reward is subtracted after scaling.

    Deviation: "reward scaling" of PPO for control divides by the standard deviation of discounted returns. A
    response has one reward, so titanrl divides by the standard deviation of the rewards.
    """

    divide: bool = True
    """Whether rewards are divided by their running standard deviation."""
    center: bool = False
    """Whether the running mean is subtracted before."""
    clip: Annotated[float, Range("(0, inf]")] = math.inf
    """Bound of the absolute value of the scaled rewards, > 0; inf: none."""
    count: int = field(init=False, default=0)
    """Rewards seen so far."""
    mean: float = field(init=False, default=0.0)
    """Mean of these rewards."""
    squares: float = field(init=False, default=0.0)
    """Sum of squared distances of these rewards from the mean."""

    def __post_init__(self) -> None:
        if not (self.divide or self.center or math.isfinite(self.clip)):
            raise ValueError(
                "divide must be true where center and clip are off, got false; remove the table."
            )

    def update(self, reward: torch.Tensor) -> None:
        """Updates the moments with the rewards [N] of a step."""
        scored = reward[~reward.isnan()].double()
        if not len(scored):
            return
        # The computed mean of equal numbers may differ in the last digit, which would give a variance > 0.
        is_constant = bool((scored == scored[0]).all())
        mean = float(scored[0] if is_constant else scored.mean())
        squares = 0.0 if is_constant else float((scored - mean).square().sum())
        total, delta = self.count + len(scored), mean - self.mean
        self.squares += squares + delta**2 * self.count * len(scored) / total
        self.mean = mean if not self.count else self.mean + delta * len(scored) / total
        self.count = total

    @property
    def std(self) -> float:
        """The divisor of the rewards: their standard deviation, or 1 while all are equal."""
        return math.sqrt(self.squares / (self.count - 1)) if self.squares else 1.0

    def __call__(self, reward: torch.Tensor) -> torch.Tensor:
        """Returns the scaled rewards, [N] float32."""
        value = reward.double()
        if self.center:
            value = value - self.mean
        if self.divide:
            value = value / self.std
        return value.clamp(-self.clip, self.clip).float()

    def state_dict(self) -> dict[str, Any]:
        """Returns the moments."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the moments that ``state_dict`` returned."""
        self.count = int(state_dict["count"])
        self.mean, self.squares = float(state_dict["mean"]), float(state_dict["squares"])
