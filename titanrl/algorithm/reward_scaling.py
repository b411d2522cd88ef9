"""The [algorithm.reward_scaling] table: rewards on one scale, by the moments of all rewards so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from titanrl.errors import check_range

if TYPE_CHECKING:
    import torch

__all__ = ["RewardScaling"]


@dataclass(slots=True, kw_only=True)
class RewardScaling:
    """Brings rewards near unit size, whatever the scale of a reward model.

        r' = clip((r - mean) / deviation, -clip, clip)

    mean, if it is subtracted, and deviation (n - 1, float64) are those of all rewards that the run has
    sampled, this step's included, before any filter. Rewards that have all been equal are not divided.
    Unscored rows (NaN) count in no moment and stay as they are. Filters see the rewards as they came, and so
    do the metrics ``reward/...``; all that comes after sees the scaled ones, the greedy answer's
    ``baseline_reward`` among them. KL-in-reward is taken off afterwards.

    Deviation: "reward scaling" of PPO for control divides by that of discounted returns; an answer has one
    reward, so it is the reward's own.
    """

    divide: bool = True
    """Whether rewards are divided by their running deviation."""
    center: bool = False
    """Whether their running mean is subtracted before."""
    clip: float = math.inf
    """Bound of the size of what results, > 0; inf: none."""
    count: int = field(init=False, default=0)
    """Rewards seen so far."""
    mean: float = field(init=False, default=0.0)
    """Their mean."""
    squares: float = field(init=False, default=0.0)
    """Sum of their squared distances from the mean."""

    def __post_init__(self) -> None:
        check_range(self, "clip", "(0, inf]")
        if not (self.divide or self.center or math.isfinite(self.clip)):
            raise ValueError(
                "divide must be true where center and clip are off, got false; remove the table."
            )

    def see(self, reward: torch.Tensor) -> None:
        """Takes the rewards [N] of a step into the moments."""
        seen = reward[~reward.isnan()].double()
        if not len(seen):
            return
        # Equal numbers have a mean that may differ from them in the last digit, and then a spread.
        is_flat = bool((seen == seen[0]).all())
        mean = float(seen[0] if is_flat else seen.mean())
        squares = 0.0 if is_flat else float((seen - mean).square().sum())
        total, moved = self.count + len(seen), mean - self.mean
        self.squares += squares + moved**2 * self.count * len(seen) / total
        self.mean = mean if not self.count else self.mean + moved * len(seen) / total
        self.count = total

    @property
    def deviation(self) -> float:
        """What rewards are divided by: 1 while all of them were equal."""
        return math.sqrt(self.squares / (self.count - 1)) if self.squares else 1.0

    def __call__(self, reward: torch.Tensor) -> torch.Tensor:
        """Returns rewards [N] float32 on the present scale."""
        value = reward.double()
        if self.center:
            value = value - self.mean
        if self.divide:
            value = value / self.deviation
        return value.clamp(-self.clip, self.clip).float()

    def state_dict(self) -> dict[str, Any]:
        """Returns the moments."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from what state_dict() returned."""
        self.count = int(state_dict["count"])
        self.mean, self.squares = float(state_dict["mean"]), float(state_dict["squares"])
