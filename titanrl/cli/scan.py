"""What the data of an experiment are like: bad examples, long ones, and how long their rows are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from titanrl.eval.overlap import compare

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.data.examples import ExampleLoader

__all__ = ["histogram", "scan_data"]

BINS = 12
"""Most lines of a histogram."""


def scan_data(experiment: Experiment, console: Console) -> int:
    """Reads all of [data] or [prompts] and what is held out, shows what they hold; loads no model.

    Returns:
        How many examples cannot be trained on.

    Raises:
        ConfigError: a source cannot be opened.
    """
    bad = 0 if experiment.data is None else _scan(experiment, console)
    for found in compare(experiment):
        style = "yellow" if found.num_in_training else None
        console.print(str(found), style=style, markup=False, highlight=False, soft_wrap=True)
    return bad


def _scan(experiment: Experiment, console: Console) -> int:
    """Reads and tokenizes all of [data] and [evaluation.data]; returns how many examples are bad."""
    from titanrl.data.examples import open_data
    from titanrl.data.tokenizer import ChatTokenizer

    evaluation = experiment.evaluation
    sources = {"data": experiment.data, "evaluation.data": None if evaluation is None else evaluation.data}
    tokens = ChatTokenizer(experiment.model.path, experiment.model.chat_template)
    feeds = [
        (table, open_data(experiment, settings, tokens, table=table))
        for table, settings in sources.items()
        if settings is not None
    ]
    return sum(_show(table, feed, experiment.training.seq_len, console) for table, feed in feeds)


def _show(table: str, feed: ExampleLoader, seq_len: int, console: Console) -> int:
    found = feed.scan()
    for problem in found.problems:
        console.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
    lengths, examples = found.row_tokens, len(feed.source)
    facts = f"{examples:,} examples, {len(found.problems):,} that cannot be trained on"
    if found.dropped:
        facts += f", {found.dropped:,} dropped as longer than [training] seq_len = {seq_len}"
    console.print(f"[{table}] {facts}.", markup=False, highlight=False, soft_wrap=True)
    if lengths:
        share = found.trained_tokens / sum(lengths)
        console.print(
            f"{len(lengths):,} rows of {sum(lengths):,} tokens, {share:.0%} of them trained; "
            f"median {median(lengths):,.0f}, longest {max(lengths):,}.",
            highlight=False,
            soft_wrap=True,
        )
        drawn = Table("tokens", "rows", "", box=None, padding=(0, 1))
        bins = list(histogram(lengths))
        for low, high, count in bins:
            bar = Bar(max(count for _, _, count in bins), 0, count, width=40)
            drawn.add_row(f"{low:,} - {high:,}" if low < high else f"{low:,}", f"{count:,}", bar)
        console.print(drawn)
    return len(found.problems)


def histogram(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yields (from, to, how many) over bins of one width, a round number; empty ones between are kept.

    Args:
        lengths: at least one.
    """
    low, high = min(lengths), max(lengths)
    widths = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    width = next(each for each in widths if high // each - low // each < BINS)
    counts = Counter(length // width for length in lengths)
    for place in range(low // width, high // width + 1):
        yield place * width, (place + 1) * width - 1, counts[place]
