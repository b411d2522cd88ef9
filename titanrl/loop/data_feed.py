"""Which fixed rows a step trains on, as token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.errors import ConfigError
from titanrl.loop.fixed import EncodedRow, encode_row
from titanrl.loop.order import Order
from titanrl.protocols import DataSettings, FixedRow

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.loop.tokens import Tokens

__all__ = ["DataFeed", "Drawn", "Scan", "held_out_data", "open_data", "training_data"]

SHOWN = 10
"""Bad examples that a message shows; the others it counts."""


class Drawn(NamedTuple):
    """What a step takes of the data."""

    groups: list[list[EncodedRow]]
    """The rows of each example."""
    dropped: int
    """Examples that were left out before these were found, because they are too long."""


class Scan(NamedTuple):
    """What a data source holds."""

    problems: list[str]
    """Place and fault of each example that cannot be trained on; too long ones where they are refused."""
    dropped: int
    """Examples that are left out because they are too long."""
    row_tokens: list[int]
    """Length of each tokenized row, of bad examples none."""
    trained_tokens: int
    """How many of those tokens are trained on."""


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
        """Reads every example, and tokenizes the first ``count``, or all, where too long ones are refused.

        Raises:
            ConfigError: naming those that are bad, too long or can't be tokenized.
        """
        problems = self.scan(0 if self.settings.too_long == "drop" else count).problems
        if problems:
            hidden = len(problems) - SHOWN
            more = [f"and {hidden} more examples."] if hidden > 0 else []
            raise ConfigError("\n".join([*problems[:SHOWN], *more]))

    def scan(self, count: int | None = None) -> Scan:
        """Returns what every example is like; the first ``count``, or all, are tokenized for it."""
        problems: list[str] = []
        row_tokens: list[int] = []
        dropped = trained = 0
        for index in range(len(self.source)):
            try:
                rows = self.source[index]
                encoded = [self._encode(row) for row in rows] if count is None or index < count else []
            except ConfigError:
                raise
            except ValueError as error:
                problems.append(f"{self.source.place(index)}: {error}")
                continue
            row_tokens += [len(row.ids) for row in encoded]
            trained += sum(sum(row.trained) for row in encoded)
            if encoded and (longest := self._longest(encoded)) > self._seq_len:
                if self.settings.too_long == "refuse":
                    problems.append(self._too_long(index, longest))
                else:
                    dropped += 1
        return Scan(problems, dropped, row_tokens, trained)

    def take(self, count: int) -> Drawn:
        """Returns the next ``count`` examples that fit."""
        return self._collect(count, lambda: self._order.take())

    def walk(self, count: int | None = None) -> Iterator[list[EncodedRow]]:
        """Yields the rows of the first ``count`` examples that fit, or of all, as the source has them."""
        given = 0
        for index in range(len(self.source)):
            if given == count:
                return
            rows = self._rows(index)
            if self._longest(rows) <= self._seq_len:
                given += 1
                yield rows

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
    feed = open_data(experiment, experiment.data, tokens, table="data")
    feed.check()
    return feed


def held_out_data(experiment: Experiment, tokens: Tokens) -> DataFeed | None:
    """Returns the data on which a validation takes the loss, as much as it takes checked; None: it takes
    none."""
    evaluation = experiment.evaluation
    if evaluation is None or evaluation.data is None:
        return None
    feed = open_data(experiment, evaluation.data, tokens, table="evaluation.data")
    feed.check(evaluation.num_prompts)
    return feed


def open_data(experiment: Experiment, settings: DataSettings, tokens: Tokens, *, table: str) -> DataFeed:
    """Returns a feed of one source of the experiment, unchecked.

    Args:
        table: where the source stands.
    """

    heads = tuple(experiment.model.heads)

    def encode(row: FixedRow) -> EncodedRow:
        return encode_row(row, tokens, heads)

    seq_len = experiment.training.seq_len
    return DataFeed(settings, encode, seed=experiment.run.seed, seq_len=seq_len, table=table)
