"""Which fixed rows a step trains on, as token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from titanrl.data.encode import TokenizedExample, encode_row
from titanrl.data.loader import NO_WORKERS, Loader, Workers
from titanrl.data.order import IndexSampler
from titanrl.errors import ConfigError
from titanrl.protocols import DataSettings, DataSource, Example

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.data.tokenizer import ChatTokenizer

__all__ = ["ExampleLoader", "ExampleBatch", "DatasetReport", "held_out_data", "open_data", "training_data"]

SHOWN = 10
"""Bad examples that a message shows; the others it counts."""


class ExampleBatch(NamedTuple):
    """What a step takes of the data."""

    groups: list[list[TokenizedExample]]
    """The rows of each example."""
    dropped: int
    """Examples that were left out before these were found, because they are too long."""


class DatasetReport(NamedTuple):
    """What a data source holds."""

    problems: list[str]
    """Place and fault of each example that cannot be trained on; too long ones where they are refused."""
    dropped: int
    """Examples that are left out because they are too long."""
    row_tokens: list[int]
    """Length of each tokenized row, of bad examples none."""
    trained_tokens: int
    """How many of those tokens are trained on."""


class ExampleLoader:
    """Walks a data source in a new order each epoch; the order is a function of (seed, position) alone.

    Args:
        settings: the source. encode: row -> token ids. seed: of the shuffle.
        seq_len: longest row, tokens; a longer one is never cut, its example is refused or dropped.
        table: where the source stands in the experiment file.
        workers: who reads what ``take`` returns.

    Raises:
        ConfigError: the source is empty or can't be read.
    """

    def __init__(
        self,
        settings: DataSettings,
        encode: Callable[[Example], TokenizedExample],
        *,
        seed: int,
        seq_len: int,
        table: str = "data",
        workers: Workers = NO_WORKERS,
    ) -> None:
        self.settings, self.source = settings, settings.open()
        if len(self.source) == 0:
            raise ConfigError(f"[{table}] holds no example; name a source with at least one.")
        self._encode, self._seq_len, self._table = encode, seq_len, table
        self._read = partial(_read, self.source, encode)
        self.loader = Loader(self._read, IndexSampler(len(self.source), seed=seed), workers)
        """Where the feed stands, for checkpoints."""

    def check(self, count: int | None = None) -> None:
        """Reads every example, and tokenizes the first ``count``, or all, where too long ones are refused.

        Raises:
            ConfigError: naming those that are bad, too long or can't be tokenized.
        """
        problems = self.scan(0 if self.settings.on_overlong == "drop" else count).problems
        if problems:
            hidden = len(problems) - SHOWN
            more = [f"and {hidden} more examples."] if hidden > 0 else []
            raise ConfigError("\n".join([*problems[:SHOWN], *more]))

    def scan(self, count: int | None = None) -> DatasetReport:
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
                if self.settings.on_overlong == "error":
                    problems.append(self._too_long(index, longest))
                else:
                    dropped += 1
        return DatasetReport(problems, dropped, row_tokens, trained)

    def next_batch(self, count: int) -> ExampleBatch:
        """Returns the next ``count`` examples that fit."""
        found = list(islice(self._fitting(self.loader), count))
        return ExampleBatch([rows for rows, _ in found], sum(dropped for _, dropped in found))

    def iterate_once(self, count: int | None = None) -> Iterator[list[TokenizedExample]]:
        """Yields the rows of the first ``count`` examples that fit, or of all, as the source has them."""
        examples = ((index, self._read(index)) for index in range(len(self.source)))
        return (rows for rows, _ in islice(self._fitting(examples), count))

    def _fitting(
        self, examples: Iterable[tuple[int, list[TokenizedExample]]]
    ) -> Iterator[tuple[list[TokenizedExample], int]]:
        """Yields the rows of each example that fits, and how many were dropped since the one before."""
        dropped = 0
        for index, rows in examples:
            if (longest := self._longest(rows)) <= self._seq_len:
                yield rows, dropped
                dropped = 0
                continue
            dropped += 1
            # So many in a row hold a whole epoch.
            if self.settings.on_overlong == "error" or dropped >= 2 * len(self.source):
                raise ConfigError(self._too_long(index, longest))

    def _longest(self, rows: Sequence[TokenizedExample]) -> int:
        return max(len(row.ids) for row in rows)

    def _too_long(self, index: int, longest: int) -> str:
        return (
            f"{self.source.place(index)}: [{self._table}] has a row of {longest} tokens, more than "
            f"[training] seq_len = {self._seq_len}; raise it, or set on_overlong = 'drop'."
        )

    @property
    def epoch(self) -> float:
        """How often the data has been gone through, with its fraction."""
        return self.loader.position / len(self.source)


def _read(
    source: DataSource, encode: Callable[[Example], TokenizedExample], index: int
) -> list[TokenizedExample]:
    try:
        return [encode(row) for row in source[index]]
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{source.place(index)}: {error}") from error


def training_data(experiment: Experiment, tokens: ChatTokenizer) -> ExampleLoader:
    """Returns the data of training, checked."""
    assert experiment.data is not None
    workers = Workers(experiment.loop.data_workers, ahead=experiment.loop.prompts_per_step)
    feed = open_data(experiment, experiment.data, tokens, table="data", workers=workers)
    feed.check()
    return feed


def held_out_data(experiment: Experiment, tokens: ChatTokenizer) -> ExampleLoader | None:
    """Returns the data on which a validation takes the loss, as much as it takes checked; None: it takes
    none."""
    evaluation = experiment.evaluation
    if evaluation is None or evaluation.data is None:
        return None
    feed = open_data(experiment, evaluation.data, tokens, table="evaluation.data")
    feed.check(evaluation.num_prompts)
    return feed


def open_data(
    experiment: Experiment, settings: DataSettings, tokens: ChatTokenizer, *, table: str,
    workers: Workers = NO_WORKERS,
) -> ExampleLoader:  # fmt: skip
    """Returns a feed of one source of the experiment, unchecked.

    Args:
        table: where the source stands. workers: who reads.
    """
    encode = partial(encode_row, tokens=tokens, heads=tuple(experiment.model.heads))
    return ExampleLoader(
        settings, encode, seed=experiment.run.seed, seq_len=experiment.training.seq_len, table=table,
        workers=workers,
    )  # fmt: skip
