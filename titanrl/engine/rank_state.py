"""The state of one object per rank inside a checkpoint, and its distribution over another number of ranks."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from titanrl.protocols import Stateful

__all__ = ["RankState", "report_other_mesh"]

logger = logging.getLogger(__name__)


class RankState(Stateful):
    """The state of one object on each rank as bytes.

    Its structure may change from step to step, unlike the keys of a distributed checkpoint. On another number
    of processes than wrote it, rank r gets the state of rank ``r % number of writers``.
    """

    def __init__(self, state: Stateful | None) -> None:
        self._state = state
        self._num_stored = 0
        self.different_parts: list[str] = []
        """Parts that differed between the ranks of a checkpoint of another number of processes."""

    @contextmanager
    def reading(self, num_stored: int) -> Iterator[None]:
        """Within the block ``state_dict`` returns the keys of a checkpoint to read.

        Args:
            num_stored: processes that wrote the checkpoint.
        """
        self._num_stored, self.different_parts = num_stored, []
        try:
            yield
        finally:
            self._num_stored = 0

    def state_dict(self) -> dict[str, Any]:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if self._num_stored:
            ranks = [rank] if self._num_stored == world_size else range(self._num_stored)
            return {f"rank-{each}": b"" for each in ranks} | {"world_size": self._num_stored}
        buffer = io.BytesIO()
        torch.save({} if self._state is None else self._state.state_dict(), buffer)
        return {f"rank-{rank}": buffer.getvalue(), "world_size": world_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._state is None:
            return
        num_stored = state_dict["world_size"]
        own = _decode(state_dict[f"rank-{dist.get_rank() % num_stored}"])
        if num_stored != dist.get_world_size():
            self.different_parts = _different_parts(
                [_decode(state_dict[f"rank-{rank}"]) for rank in range(num_stored)]
            )
        self._state.load_state_dict(own)


def report_other_mesh(stored: Mapping[str, int], present: Mapping[str, int], parts: Sequence[str]) -> None:
    """Says what is no longer bitwise equal if a checkpoint is continued on another mesh than wrote it.

    Args:
        stored: number of processes and parallelism degrees of the checkpoint, by name.
        present: those of this process group.
        parts: parts of the loop's state that differed between the ranks of the checkpoint.
    """
    if dict(stored) == dict(present) or dist.get_rank() != 0:
        return
    text = (
        f"The checkpoint was written on {_describe(stored)} and continues on {_describe(present)}. Weights, "
        "optimizer state, schedules and the position in the data are equal. Sums over ranks are taken in "
        "another order from now on, so results equal those of an unchanged mesh up to rounding, not bit for "
        "bit."
    )
    if stored["processes"] != present["processes"]:
        text += (
            " Each process continues with the random numbers and the component state of process (rank % "
            f"{stored['processes']}) of the checkpoint"
        )
        text += f"; {', '.join(parts)} differed between its processes." if parts else "; they were all equal."
    logger.warning(text)


def _describe(mesh: Mapping[str, int]) -> str:
    degrees = [f"{name} {degree}" for name, degree in mesh.items() if name != "processes" and degree > 1]
    processes = f"{mesh['processes']} process{'' if mesh['processes'] == 1 else 'es'}"
    return f"{processes} ({', '.join(degrees)})" if degrees else processes


def _decode(data: bytes) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return state


def _different_parts(states: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the keys, those of nested tables with a dot, whose values are not the same in all states."""
    found = []
    for key in sorted({key for state in states for key in state}):
        values = [state.get(key) for state in states]
        if all(isinstance(value, Mapping) for value in values):
            found += [f"{key}.{name}" for name in _different_parts(values)]  # type: ignore[arg-type]
        elif len({_encode(value) for value in values}) > 1:
            found.append(key)
    return found


def _encode(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
