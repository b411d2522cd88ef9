"""A reference model that shares the policy's weights until the first update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict

from titanrl.engine.learner import Learner
from titanrl.engine.scoring_model import ScoringModel

__all__ = ["LazyReference"]


class LazyReference:
    """A frozen model with the policy's initial weights, loaded as a second copy at the first update."""

    def __init__(self, policy: Learner, load: Callable[[], ScoringModel]) -> None:
        """Keeps the policy to score with it.

        Args:
            policy: the trained model.
            load: reads the initial weights from their folder, once the policy's weights differ.
        """
        self._policy = policy
        self._load = load
        self._scoring_model: ScoringModel | None = None

    @property
    def is_policy(self) -> bool:
        """Whether the policy still has the initial weights."""
        return not self._policy.is_updated

    def score(self, batch: TensorDict, keys: Sequence[str] = ("logprob",)) -> dict[str, torch.Tensor]:
        """Returns the outputs of the initial policy: see ScoringModel.score."""
        if self.is_policy:
            return self._policy.score(batch, tuple(keys))
        if self._scoring_model is None:
            self._scoring_model = self._load()
        return self._scoring_model.score(batch, keys)
