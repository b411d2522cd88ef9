"""The state of a run in a checkpoint, beside model, optimizer and learning-rate schedule."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from titanrl.errors import ConfigError
from titanrl.protocols import Stateful

if TYPE_CHECKING:
    from collections.abc import Sequence

    from titanrl.algorithm.table import Algorithm
    from titanrl.config.tables import Critic, Reward

__all__ = ["LoopState", "components_of", "seed_generators"]


def seed_generators(seed: int) -> None:
    """Seeds the generators of torch, numpy and Python, the same on every rank.

    titanrl itself draws from generators of its own, seeded by step and row; these three serve the components.

    Args:
        seed: seed of the run, [run] seed.
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def components_of(
    algorithm: Algorithm, rewards: Sequence[Reward], critic: Critic | None, sampler: Any
) -> dict[str, Any]:
    """Returns every component that a training run uses, by its path in the experiment file.

    Args:
        algorithm: the [algorithm] table.
        rewards: the [[reward]] tables.
        critic: the [critic] table; None: there is none.
        sampler: the [sampler] table; None: nothing is sampled.
    """
    parts = {
        "algorithm.advantage": algorithm.advantage,
        "algorithm.aggregation": algorithm.aggregation,
        "algorithm.entropy": algorithm.entropy,
        "algorithm.loss": algorithm.loss,
        "algorithm.reward_scaling": algorithm.reward_scaling,
        "critic.loss": None if critic is None else critic.loss,
        "sampler": sampler,
    }
    if algorithm.kl is not None:
        parts["algorithm.kl"] = algorithm.kl.estimator
        parts["algorithm.kl.controller"] = algorithm.kl.controller
    parts |= {f"algorithm.correction.{i}": each for i, each in enumerate(algorithm.correction)}
    parts |= {f"algorithm.filter.{i}": each for i, each in enumerate(algorithm.filter)}
    parts |= {f"reward.{each.label}": each.component for each in rewards}
    return {path: part for path, part in parts.items() if part is not None}


class LoopState:
    """Finished steps, position in the data, state of every component that has some, random state."""

    def __init__(self, loader: Stateful, components: Mapping[str, Any]) -> None:
        """Collects the parts that have state.

        Args:
            loader: loader of the prompts or examples; its state is its position.
            components: path in the experiment file -> component, see ``components_of``.
        """
        self._before_step: dict[str, Any] | None = None
        self._is_rewound = False
        self.step = 0
        """Finished training steps."""
        self._components = components
        self._parts: dict[str, Stateful] = {"loader": loader} | {
            path: part for path, part in components.items() if isinstance(part, Stateful)
        }

    def end_optimizer_step(self, metrics: Mapping[str, float], *, of_critic: bool = False) -> None:
        """Calls ``on_step_end(metrics)`` of every component that has it, once per optimizer step.

        Args:
            metrics: means over the optimizer step and all ranks, by metric name.
            of_critic: whether it is the critic's optimizer step, which concerns the critic's loss alone.
        """
        for path, component in self._components.items():
            hook = getattr(component, "on_step_end", None)
            if hook is not None and (path == "critic.loss") == of_critic:
                hook(dict(metrics))

    def begin_step(self) -> None:
        """Remembers the state before a step that may be abandoned."""
        self._before_step = copy.deepcopy(self.state_dict())

    def rewind(self) -> None:
        """Makes ``state_dict`` return the state before the step that was abandoned."""
        self._is_rewound = True

    def state_dict(self) -> dict[str, Any]:
        if self._is_rewound:
            assert self._before_step is not None
            return self._before_step
        return {
            "step": self.step,
            "parts": {path: part.state_dict() for path, part in self._parts.items()},
            "torch_rng": torch.get_rng_state(),
            "python_rng": random.getstate(),
            "numpy_rng": _numpy_state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state that ``state_dict`` returned.

        Raises:
            ConfigError: the checkpoint has the state of other components than this run.
        """
        stored = state_dict["parts"]
        if stored.keys() != self._parts.keys():
            missing, extra = (
                ", ".join(sorted(each)) or "none"
                for each in (
                    self._parts.keys() - stored.keys(),
                    stored.keys() - self._parts.keys(),
                )
            )
            raise ConfigError(
                f"the checkpoint holds the state of other components: it lacks {missing}, and has {extra} "
                "in addition; resume with the components that the run was started with."
            )
        self.step = int(state_dict["step"])
        for path, part in self._parts.items():
            part.load_state_dict(stored[path])
        torch.set_rng_state(state_dict["torch_rng"])
        random.setstate(state_dict["python_rng"])
        _set_numpy_state(state_dict["numpy_rng"])


def _numpy_state() -> dict[str, Any]:
    """Returns the state of numpy's global generator as tensors and numbers."""
    state = np.random.get_state(legacy=False)
    return {
        "keys": torch.from_numpy(state["state"]["key"].astype(np.int64)),
        "position": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "cached": float(state["gauss"]),
    }


def _set_numpy_state(state: Mapping[str, Any]) -> None:
    keys = state["keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, state["position"], state["has_gauss"], state["cached"]))
