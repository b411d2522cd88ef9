"""A reward from any Python function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from titanrl.components.rewards.function.signatures import Row, Signature, call_in_process, signature_of
from titanrl.registry import Range, register
from titanrl.runtime.worker_pool import map_with_timeout, max_map_seconds

# No torch at module level: the worker processes import this package.
if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

__all__ = ["Function"]


@register("reward", "function")
@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """Score by a Python function of your own, `module:name`, sync or async.

    The names of its parameters tell how it is called, so that functions for TRL and verl work unchanged:

        f(response, ...)                                        once per row, returns a number
        f(responses, ...)                                       once per batch, returns a list
        f(prompts, completions, **columns)                      once per batch, as TRL does
        f(data_source, solution_str, ground_truth, extra_info)  once per row, as verl does

    Other parameters get `prompt`, `conversation`, `answer`, `source`, `columns` (a mapping of all columns of
    the prompt's row), or the column of their name; lists of them in a batch. `ground_truth` is the column
    `reward_model.ground_truth`, or the reference answer. A row's result may be a number, None for a missing
    score, or a dict with `score`; other entries of the dict are ignored. The value is not scaled or clipped.
    """

    function: str
    """Module and name of the function: `my_rewards:word_count`. The module is imported from the working
    directory, from an installed package, or from a file in imports."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Parameter -> the text or the column that it gets, where the names differ; dots reach into tables:
    {solution = "answer", level = "extra_info.level"}."""
    chat: bool = False
    """Pass prompts and responses as lists of one message, as TRL does for chats. The prompt is its last
    message."""
    isolation: Literal["thread", "process"] = "thread"
    """`thread`: the function runs in the trainer's process. `process`: each row is scored in a worker
    process, on all cores; one that exits, crashes or hangs is replaced and costs its row. Workers have no
    GPU and 4 GiB of memory, and a function of batches gets one row at a time."""
    timeout_seconds: Annotated[float, Range("(0, inf)")] = 60.0
    """Time limit per call, seconds: of a batch, or of a row where the function is called per row."""
    failure_score: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Score of a response on which the function fails."""

    def __post_init__(self) -> None:
        self._signature()

    def _signature(self) -> Signature:
        return signature_of(self.function, tuple(sorted(self.arguments.items())))

    @property
    def in_keys(self) -> tuple[tuple[str, ...], ...]:
        return tuple(("text", name) for name in self._signature().texts())

    @property
    def in_columns(self) -> tuple[str, ...]:
        return self._signature().columns()

    @property
    def per_row(self) -> bool:
        return self._signature().is_per_row

    def __call__(self, batch: TensorDict) -> torch.Tensor | Awaitable[torch.Tensor]:
        """Returns [n] float32, NaN for missing scores; an awaitable of it for an async function."""
        scores = self._signature().scores(self._rows(batch), self.chat)
        return _tensor_later(scores) if inspect.isawaitable(scores) else _tensor(scores)

    @property
    def scores(self) -> Callable[[TensorDict], list[float | str | None]] | None:
        """The function that scores each row in a process of its own; None with isolation = "thread"."""
        return self._scores if self.isolation == "process" else None

    def max_seconds(self, num_rows: int) -> float | None:
        """Returns the longest time of ``num_rows`` responses in processes, seconds; None in threads."""
        return max_map_seconds(num_rows, self.timeout_seconds) if self.isolation == "process" else None

    def _scores(self, batch: TensorDict) -> list[float | str | None]:
        fixed = self.function, tuple(sorted(self.arguments.items())), self.chat
        results = map_with_timeout(
            call_in_process,
            [(*fixed, row) for row in self._rows(batch)],
            timeout_seconds=self.timeout_seconds,
            imports=(self.function.partition(":")[0],),
            give_up=True,
        )
        return [result.score for result in results]

    def _rows(self, batch: TensorDict) -> list[Row]:
        names = self._signature().texts()
        texts = {name: [str(text) for text in batch["text", name]] for name in names if name != "columns"}
        columns = batch["text", "columns"] if "columns" in names else [{}] * len(batch)
        return [
            Row({name: values[index] for name, values in texts.items()}, dict(columns[index]))
            for index in range(len(batch))
        ]


async def _tensor_later(scores: Awaitable[Any]) -> torch.Tensor:
    return _tensor(await scores)


def _tensor(scores: list[Any]) -> torch.Tensor:
    import torch

    values = [math.nan if score is None else float(score) for score in scores]
    return torch.tensor(values, dtype=torch.float32)
