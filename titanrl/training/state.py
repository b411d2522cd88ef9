"""What a checkpoint holds beside model, optimizer and schedule."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

from titanrl.protocols import Stateful

if TYPE_CHECKING:
    from titanrl.algorithm.table import Algorithm

__all__ = ["LoopState"]


class LoopState:
    """Steps finished, position in prompts or data, controllers and other components with state, random
    state."""

    def __init__(self, loader: Stateful, algorithm: Algorithm) -> None:
        self.step = 0
        """Steps finished."""
        kl = algorithm.kl.controller if algorithm.kl is not None else None
        parts = {
            "kl": kl, "entropy": algorithm.entropy, "advantage": algorithm.advantage,
            "reward_scaling": algorithm.reward_scaling,
        }  # fmt: skip
        self._parts: dict[str, Stateful] = {"feed": loader} | {
            name: part for name, part in parts.items() if isinstance(part, Stateful)
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "torch_rng": torch.get_rng_state(),
            "python_rng": random.getstate(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step = int(state_dict["step"])
        for name, part in self._parts.items():
            part.load_state_dict(state_dict["parts"][name])
        torch.set_rng_state(state_dict["torch_rng"])
        random.setstate(state_dict["python_rng"])
