"""A resumable loader: examples in a given order, read ahead by worker processes."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from titanrl.data.order import IndexSampler
from titanrl.errors import ConfigError

__all__ = ["NO_WORKERS", "Loader", "Workers"]

Example = TypeVar("Example")


class Workers(NamedTuple):
    """The worker processes of a loader."""

    num_workers: int
    """Number of processes, >= 0; 0: each example is read when it is taken."""
    prefetch: int = 1
    """Examples that all workers together read ahead, >= 1; at least two per worker."""


NO_WORKERS = Workers(0)


class Loader(Generic[Example]):
    """Yields (index, example) without end; its only state is the number of examples taken.

    Examples that workers have read ahead do not count, so the number of workers may change on resume.

    Args:
        read: index -> example, a function of the index alone, pickled for workers. Its ConfigErrors are
            raised when the example is taken.
        order: order of the indices.
        workers: the processes that read.
    """

    def __init__(
        self, read: Callable[[int], Example], order: IndexSampler, workers: Workers = NO_WORKERS
    ) -> None:
        self._order, (num_workers, prefetch) = order, workers
        with warnings.catch_warnings():
            # torchdata 0.11 calls a function that torch 2.13 deprecates.
            warnings.filterwarnings("ignore", "'set_vital' is deprecated")
            self._loader = StatefulDataLoader(
                _Examples(read),
                batch_size=None,
                sampler=order,
                collate_fn=_identity,
                num_workers=num_workers,
                prefetch_factor=max(2, -(-prefetch // num_workers)) if num_workers else None,
                # Neither threads nor CUDA survive a fork.
                multiprocessing_context="spawn" if num_workers else None,
                # A separate generator: each start consumes a random number, and resuming adds starts.
                generator=torch.Generator(),
            )
        self._examples: Iterator[tuple[int, Example] | ConfigError] | None = None

    def __iter__(self) -> Loader[Example]:
        return self

    def __next__(self) -> tuple[int, Example]:
        if self._examples is None:
            self._examples = self._start()
        result = next(self._examples)
        if isinstance(result, ConfigError):
            raise result
        return result

    def _start(self) -> Iterator[tuple[int, Example] | ConfigError]:
        try:
            return iter(self._loader)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ConfigError(
                f"[loop] data_workers cannot pickle the source: {error}; define its classes and functions at "
                "the top level of modules, or set data_workers = 0."
            ) from error

    @property
    def position(self) -> int:
        """Number of examples taken so far."""
        return int(self.state_dict()["position"])

    def state_dict(self) -> dict[str, Any]:
        if self._examples is None:
            return self._order.state_dict()
        state = self._loader.state_dict()
        # With workers, torchdata 0.11 keeps the order as of the request of the example last taken.
        state = state["_snapshot"]["_main_snapshot"] if "_snapshot" in state else state
        return dict(state["_index_sampler_state"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._examples = None
        self._loader.load_state_dict({})  # Drops the iterator, which ends its workers.
        self._order.load_state_dict(state_dict)

    def close(self) -> None:
        """End the workers; the next example starts new ones at the same position."""
        self.load_state_dict(self.state_dict())


@dataclass(frozen=True, slots=True)
class _Examples(Generic[Example]):
    """The examples by index; a ConfigError is returned, because torch rewrites errors raised in workers."""

    read: Callable[[int], Example]

    def __getitem__(self, index: int) -> tuple[int, Example] | ConfigError:
        try:
            return index, self.read(index)
        except ConfigError as error:
            return error


def _identity(example: Any) -> Any:
    return example
