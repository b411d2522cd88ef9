"""Which fixed rows a step trains on, as token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.errors import ConfigError
from titanrl.loop.fixed import EncodedRow, encode_row
from titanrl.loop.order import Order
from titanrl.protocols import DataSettings, FixedRow

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.loop.tokens import Tokens

__all__ = ["DataFeed", "Drawn", "held_out_data", "training_data"]

SHOWN = 10
"""Bad examples that a message shows; the others it counts."""


class Drawn(NamedTuple):
    """What a step takes of the data."""

    groups: list[list[EncodedRow]]
    """The rows of each example."""
    dropped: int
    """Examples that were left out before these were found, because they are too long."""


class DataFeed:
    """Walks a data source in a new order each epoch; the order is a function of (seed, position) alone.

    Args:
        settings: the source. encode: row -> token ids. seed: of the shuffle.
        seq_len: longest row, tokens; a longer one is never cut, its example is refused or dropped.
        table: where the source stands in the experiment file.

    Raises:
        ConfigError: the source is empty or can't be read.
    """

    def __init__(
        self,
        settings: DataSettings,
        encode: Callable[[FixedRow], EncodedRow],
        *,
        seed: int,
        seq_len: int,
        table: str = "data",
    ) -> None:
        self.settings, self.source = settings, settings.open()
        if len(self.source) == 0:
            raise ConfigError(f"[{table}] holds no example; name a source with at least one.")
        self._encode, self._seq_len, self._table = encode, seq_len, table
        self._order = Order(len(self.source), seed=seed)

    def check(self, count: int | None = None) -> None:
        """Looks at the first ``count`` examples, or all, where too long ones are refused.

        Raises:
            ConfigError: naming those that are too long or can't be tokenized.
        """
        if self.settings.too_long == "drop":
            return
        problems = []
        for index in range(len(self.source) if count is None else min(count, len(self.source))):
            try:
                if (longest := self._longest(self._rows(index))) > self._seq_len:
                    problems.append(self._too_long(index, longest))
            except ConfigError:
                raise
            except ValueError as error:
                problems.append(f"{self.source.place(index)}: {error}")
        if problems:
            hidden = len(problems) - SHOWN
            more = [f"and {hidden} more examples."] if hidden > 0 else []
            raise ConfigError("\n".join([*problems[:SHOWN], *more]))

    def take(self, count: int) -> Drawn:
        """Returns the next ``count`` examples that fit."""
        return self._collect(count, lambda: self._order.take())

    def first(self, count: int) -> Drawn:
        """Returns the first ``count`` examples that fit, as the source has them, or all if it has fewer."""
        indices = iter(range(len(self.source)))
        return self._collect(count, lambda: next(indices, None))

    def _collect(self, count: int, next_index: Callable[[], int | None]) -> Drawn:
        groups: list[list[EncodedRow]] = []
        dropped = in_a_row = 0
        while len(groups) < count and (index := next_index()) is not None:
            try:
                rows = self._rows(index)
            except ConfigError:
                raise
            except ValueError as error:
                raise ConfigError(f"{self.source.place(index)}: {error}") from error
            if (longest := self._longest(rows)) <= self._seq_len:
                groups.append(rows)
                in_a_row = 0
                continue
            dropped, in_a_row = dropped + 1, in_a_row + 1
            if self.settings.too_long == "refuse" or in_a_row >= len(self.source):
                raise ConfigError(self._too_long(index, longest))
        return Drawn(groups, dropped)

    def _rows(self, index: int) -> list[EncodedRow]:
        return [self._encode(row) for row in self.source[index]]

    def _longest(self, rows: Sequence[EncodedRow]) -> int:
        return max(len(row.ids) for row in rows)

    def _too_long(self, index: int, longest: int) -> str:
        return (
            f"{self.source.place(index)}: [{self._table}] has a row of {longest} tokens, more than "
            f"[training] seq_len = {self._seq_len}; raise it, or set too_long = 'drop'."
        )

    @property
    def epoch(self) -> float:
        """How often the data has been gone through, with its fraction."""
        return self._order.position / self._order.size

    def state_dict(self) -> dict[str, Any]:
        return self._order.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._order.load_state_dict(state_dict)


def training_data(experiment: Experiment, tokens: Tokens) -> DataFeed:
    """Returns the data of training, checked."""
    assert experiment.data is not None
    feed = _feed(experiment, experiment.data, tokens, table="data")
    feed.check()
    return feed


def held_out_data(experiment: Experiment, tokens: Tokens) -> DataFeed | None:
    """Returns the data on which a validation takes the loss, as much as it takes checked; None: it takes
    none."""
    evaluation = experiment.evaluation
    if evaluation is None or evaluation.data is None:
        return None
    feed = _feed(experiment, evaluation.data, tokens, table="evaluation.data")
    feed.check(evaluation.num_prompts)
    return feed


def _feed(experiment: Experiment, settings: DataSettings, tokens: Tokens, *, table: str) -> DataFeed:
    def encode(row: FixedRow) -> EncodedRow:
        return encode_row(row, tokens)

    seq_len = experiment.training.seq_len
    return DataFeed(settings, encode, seed=experiment.run.seed, seq_len=seq_len, table=table)
