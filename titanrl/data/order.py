"""The order of a finite source: an endless shuffle whose only state is its position."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["IndexSampler"]


class IndexSampler:
    """Yields indices below ``size`` in a new order each epoch, a function of (seed, position) alone.

    Args:
        size: number of examples, >= 1.
        seed: seed of the shuffle.
        shuffle: false repeats the order of the source.
    """

    def __init__(self, size: int, *, seed: int, shuffle: bool = True) -> None:
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self.position = 0
        """Number of indices yielded so far."""
        self._epoch, self._permutation = -1, torch.empty(0, dtype=torch.int64)

    def __iter__(self) -> IndexSampler:
        return self

    def __next__(self) -> int:
        epoch, offset = divmod(self.position, self.size)
        self.position += 1
        if not self.shuffle:
            return offset
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
            self._epoch, self._permutation = epoch, torch.randperm(self.size, generator=generator)
        return int(self._permutation[offset])

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position = int(state_dict["position"])
