"""What is trained on, read in the order of training; worker processes read it ahead of the steps."""

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
    """The processes that read."""

    number: int
    """>= 0; 0: each example is read when it is taken."""
    ahead: int = 1
    """Examples that they read ahead, >= 1; twice their number at least."""


NO_WORKERS = Workers(0)


class Loader(Generic[Example]):
    """Yields (index, example) without end; its whole state is how many were taken.

    What workers have read ahead does not count as taken, so their number may change between two runs.

    Args:
        read: index -> example, a function of the index alone, which workers get pickled. Its ConfigErrors are
            raised where the example is taken.
        order: of the indices.
    """

    def __init__(
        self, read: Callable[[int], Example], order: IndexSampler, workers: Workers = NO_WORKERS
    ) -> None:
        self._order, (number, ahead) = order, workers
        with warnings.catch_warnings():
            # torchdata 0.11 calls what torch 2.13 deprecates.
            warnings.filterwarnings("ignore", "'set_vital' is deprecated")
            self._loader = StatefulDataLoader(
                _Examples(read), batch_size=None, sampler=order, collate_fn=_as_it_is, num_workers=number,
                prefetch_factor=max(2, -(-ahead // number)) if number else None,
                # Neither threads nor CUDA outlive a fork.
                multiprocessing_context="spawn" if number else None,
                # One of its own: beginning draws a number, and a resumed run begins more often.
                generator=torch.Generator(),
            )  # fmt: skip
        self._examples: Iterator[tuple[int, Example] | ConfigError] | None = None

    def __iter__(self) -> Loader[Example]:
        return self

    def __next__(self) -> tuple[int, Example]:
        if self._examples is None:
            self._examples = self._begin()
        found = next(self._examples)
        if isinstance(found, ConfigError):
            raise found
        return found

    def _begin(self) -> Iterator[tuple[int, Example] | ConfigError]:
        try:
            return iter(self._loader)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ConfigError(
                f"[loop] data_workers cannot be sent the source: {error}; make what it holds picklable, with "
                "classes and functions at the top of modules, or set data_workers = 0."
            ) from error

    @property
    def position(self) -> int:
        """Examples taken so far."""
        return int(self.state_dict()["position"])

    def state_dict(self) -> dict[str, Any]:
        if self._examples is None:
            return self._order.state_dict()
        state = self._loader.state_dict()
        # Of workers: the order as it was when the example last taken was asked for, in torchdata 0.11.
        state = state["_snapshot"]["_main_snapshot"] if "_snapshot" in state else state
        return dict(state["_index_sampler_state"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._examples = None
        self._loader.load_state_dict({})  # Lets go of the iterator, whose end is that of its workers.
        self._order.load_state_dict(state_dict)

    def close(self) -> None:
        """Ends the workers; taking on begins new ones at the same place."""
        self.load_state_dict(self.state_dict())


@dataclass(frozen=True, slots=True)
class _Examples(Generic[Example]):
    """The examples by index; a ConfigError comes as one too, as torch rewrites those that leave a worker."""

    read: Callable[[int], Example]

    def __getitem__(self, index: int) -> tuple[int, Example] | ConfigError:
        try:
            return index, self.read(index)
        except ConfigError as error:
            return error


def _as_it_is(example: Any) -> Any:
    return example
