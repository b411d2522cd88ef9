"""The policy as it was at first: it itself until it moves, and only then a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict

from titanrl.engine.learner import Learner
from titanrl.engine.scoring_model import ScoringModel

__all__ = ["LazyReference"]


class LazyReference:
    """A frozen model with the policy's initial weights: no second copy is held before the first update."""

    def __init__(self, policy: Learner, load: Callable[[], ScoringModel]) -> None:
        """Args:
        load: reads the weights from their folder, when the policy's are others by now.
        """
        self._policy = policy
        self._load = load
        self._role: ScoringModel | None = None

    @property
    def is_policy(self) -> bool:
        """Whether the policy still has these weights."""
        return not self._policy.is_updated

    def score(self, batch: TensorDict, keys: Sequence[str] = ("logprob",)) -> dict[str, torch.Tensor]:
        """Returns the outputs of the initial policy: see Role.score."""
        if self.is_policy:
            return self._policy.score(batch, tuple(keys))
        if self._role is None:
            self._role = self._load()
        return self._role.score(batch, keys)
