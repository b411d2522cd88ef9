"""Examples of a dataset: tokenized, ordered, and taken by training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from titanrl.data.encode import TokenizedExample, tokenize_example
from titanrl.data.loader import NO_WORKERS, Loader, Workers
from titanrl.data.order import IndexSampler
from titanrl.errors import ConfigError, fold_faults
from titanrl.protocols import DataSettings, DataSource, Example

if TYPE_CHECKING:
    from titanrl.config.engine_tables import Training
    from titanrl.config.tables import Evaluation, Loop, Model, Run
    from titanrl.data.tokenizer import ChatTokenizer

__all__ = [
    "DatasetReport",
    "ExampleBatch",
    "ExampleLoader",
    "ExampleTables",
    "held_out_data",
    "open_data",
    "training_data",
]

MAX_LISTED = 10
"""Bad examples that a message lists; it counts the rest."""


class ExampleTables(Protocol):
    """The tables of an experiment that its loaders of examples read."""

    @property
    def run(self) -> Run: ...
    @property
    def model(self) -> Model: ...
    @property
    def data(self) -> DataSettings | None: ...
    @property
    def loop(self) -> Loop: ...
    @property
    def evaluation(self) -> Evaluation | None: ...
    @property
    def training(self) -> Training: ...


class ExampleBatch(NamedTuple):
    """The examples of a step."""

    groups: list[list[TokenizedExample]]
    """The rows of each example."""
    dropped: int
    """Overlong examples that were skipped on the way to these."""


class DatasetReport(NamedTuple):
    """The contents of a data source."""

    problems: list[tuple[str, str]]
    """Location and fault of each bad example; overlong ones are bad where they are refused."""
    dropped: int
    """Overlong examples that are skipped."""
    row_tokens: list[int]
    """Length of each tokenized row of a good example."""
    loss_tokens: int
    """Number of tokens with a loss among them."""


class ExampleLoader:
    """Iterates over a data source in a new order each epoch, a function of (seed, position) alone.

    Args:
        settings: the table of the source.
        encode: row -> token ids.
        seed: seed of the shuffle.
        seq_len: longest row, tokens; a longer row is never truncated, its example is refused or dropped.
        table: name of the source's table, for messages.
        workers: processes that read and tokenize ahead.

    Raises:
        ConfigError: the source is empty or cannot be read.
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
            raise ConfigError(f"[{table}] has no examples; name a source with at least one.")
        self._encode, self._seq_len, self._table = encode, seq_len, table
        self._read = partial(_read, self.source, encode)
        self.loader = Loader(self._read, IndexSampler(len(self.source), seed=seed), workers)
        """Holds the position, for checkpoints."""

    def check(self, count: int | None = None) -> None:
        """Read every example, and tokenize the first ``count``, or all, where overlong ones are refused.

        Raises:
            ConfigError: naming the examples that are bad, overlong or cannot be tokenized.
        """
        problems = self.scan(0 if self.settings.on_overlong == "drop" else count).problems
        if problems:
            lines = fold_faults(problems)
            hidden = len(lines) - MAX_LISTED
            more = [f"and {hidden} more kinds of faults."] if hidden > 0 else []
            raise ConfigError("\n".join([*lines[:MAX_LISTED], *more]))

    def scan(self, count: int | None = None) -> DatasetReport:
        """Return a report on all examples, of which the first ``count``, or all, are tokenized."""
        problems: list[tuple[str, str]] = []
        row_tokens: list[int] = []
        dropped = loss_tokens = 0
        for index in range(len(self.source)):
            try:
                rows = self.source[index]
                encoded = [self._encode(row) for row in rows] if count is None or index < count else []
            except ConfigError:
                raise
            except ValueError as error:
                problems.append((self.source.location(index), str(error)))
                continue
            row_tokens += [len(row.ids) for row in encoded]
            loss_tokens += sum(sum(row.loss_mask) for row in encoded)
            if encoded and (longest := self._longest(encoded)) > self._seq_len:
                if self.settings.on_overlong == "error":
                    problems.append((self.source.location(index), self._too_long(longest)))
                else:
                    dropped += 1
        return DatasetReport(problems, dropped, row_tokens, loss_tokens)

    def next_batch(self, count: int) -> ExampleBatch:
        """Return the next ``count`` examples that fit."""
        examples = list(islice(self._fitting(self.loader), count))
        return ExampleBatch([rows for rows, _ in examples], sum(dropped for _, dropped in examples))

    def iterate_once(self, count: int | None = None) -> Iterator[list[TokenizedExample]]:
        """Yield the rows of the first ``count`` examples that fit, or of all, in the order of the source."""
        examples = ((index, self._read(index)) for index in range(len(self.source)))
        return (rows for rows, _ in islice(self._fitting(examples), count))

    def _fitting(
        self, examples: Iterable[tuple[int, list[TokenizedExample]]]
    ) -> Iterator[tuple[list[TokenizedExample], int]]:
        """Yield the rows of each example that fits, and the number dropped since the previous one."""
        dropped = 0
        for index, rows in examples:
            if (longest := self._longest(rows)) <= self._seq_len:
                yield rows, dropped
                dropped = 0
                continue
            dropped += 1
            # Twice the size in a row contains a whole epoch.
            if self.settings.on_overlong == "error" or dropped >= 2 * len(self.source):
                raise ConfigError(f"{self.source.location(index)}: {self._too_long(longest)}")

    def _longest(self, rows: Sequence[TokenizedExample]) -> int:
        return max(len(row.ids) for row in rows)

    def _too_long(self, longest: int) -> str:
        return (
            f"[{self._table}] has a row of {longest} tokens, more than "
            f"[training] seq_len = {self._seq_len}; raise it, or set on_overlong = 'drop'."
        )

    @property
    def epoch(self) -> float:
        """Passes over the data so far, with the fraction of the current one."""
        return self.loader.position / len(self.source)


def _read(
    source: DataSource, encode: Callable[[Example], TokenizedExample], index: int
) -> list[TokenizedExample]:
    try:
        return [encode(row) for row in source[index]]
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{source.location(index)}: {error}") from error


def training_data(tables: ExampleTables, tokenizer: ChatTokenizer) -> ExampleLoader:
    """Return the loader of [data], checked."""
    assert tables.data is not None
    workers = Workers(tables.loop.data_workers, tables.loop.prompts_per_step)
    loader = open_data(tables, tables.data, tokenizer, table="data", workers=workers)
    loader.check()
    return loader


def held_out_data(tables: ExampleTables, tokenizer: ChatTokenizer) -> ExampleLoader | None:
    """Return the loader of [evaluation.data], whose used part is checked; None without that table."""
    evaluation = tables.evaluation
    if evaluation is None or evaluation.data is None:
        return None
    loader = open_data(tables, evaluation.data, tokenizer, table="evaluation.data")
    loader.check(evaluation.num_prompts)
    return loader


def open_data(
    tables: ExampleTables,
    settings: DataSettings,
    tokenizer: ChatTokenizer,
    *,
    table: str,
    workers: Workers = NO_WORKERS,
) -> ExampleLoader:
    """Return the loader of a data source, unchecked.

    Args:
        tables: an experiment, or the tables that are read.
        settings: the table of the source.
        tokenizer: encodes the examples.
        table: name of the source's table, for messages.
        workers: processes that read and tokenize ahead.
    """
    encode = partial(tokenize_example, tokenizer=tokenizer, heads=tuple(tables.model.heads))
    return ExampleLoader(
        settings,
        encode,
        seed=tables.run.seed,
        seq_len=tables.training.seq_len,
        table=table,
        workers=workers,
    )
