"""Scan of an experiment's data: invalid and overlong examples, row lengths, held-out overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from titanrl.cli.references import unreadable_references
from titanrl.errors import fold_faults
from titanrl.eval.overlap import compare
from titanrl.registry import declared

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.data.examples import ExampleLoader

__all__ = ["histogram", "scan_data"]

MAX_BINS = 12
"""Maximum number of bins of a histogram."""


def scan_data(experiment: Experiment, console: Console) -> int:
    """Read all training and held-out examples and print statistics; no model is loaded.

    Args:
        experiment: the experiment whose [data] or [prompts] are read.
        console: where the statistics are printed.

    Returns:
        The number of examples that cannot be trained on.

    Raises:
        ConfigError: a source cannot be opened.
    """
    num_bad = _scan_prompts(experiment, console) if experiment.data is None else _scan(experiment, console)
    for overlap in compare(experiment):
        style = "yellow" if overlap.num_in_training else None
        console.print(str(overlap), style=style, markup=False, highlight=False, soft_wrap=True)
    return num_bad


def _scan(experiment: Experiment, console: Console) -> int:
    """Tokenize all of [data] and [evaluation.data]; return the number of bad examples."""
    from titanrl.data.examples import open_data
    from titanrl.data.tokenizer import ChatTokenizer

    evaluation = experiment.evaluation
    sources = {"data": experiment.data, "evaluation.data": None if evaluation is None else evaluation.data}
    tokenizer = ChatTokenizer(experiment.model.path, experiment.model.chat_template)
    loaders = [
        (table, open_data(experiment, settings, tokenizer, table=table))
        for table, settings in sources.items()
        if settings is not None
    ]
    seq_len = experiment.training.seq_len
    return sum(_print_statistics(table, loader, seq_len, console) for table, loader in loaders)


def _scan_prompts(experiment: Experiment, console: Console) -> int:
    """Tokenize all of [prompts] and [evaluation.prompts]; return the number of bad prompts."""
    from titanrl.data.prompts import held_out_prompts, training_prompts
    from titanrl.data.tokenizer import ChatTokenizer

    tokenizer = ChatTokenizer(experiment.model.path, experiment.model.chat_template)
    reads_answer = any(
        ("text", "answer") in declared(each.component, "in_keys") for each in experiment.reward
    )
    columns = {
        column: each.label for each in experiment.reward for column in declared(each.component, "in_columns")
    }
    num_bad = 0
    loaders = {
        "prompts": training_prompts(experiment, tokenizer),
        "evaluation.prompts": held_out_prompts(experiment, tokenizer),
    }
    for table, loader in loaders.items():
        if loader is None:
            continue
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(f"[{table}]", total=len(loader.source))
            report = loader.scan(partial(progress.advance, task), columns)
        for line in fold_faults(report.problems):
            console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
        num_bad += len(report.problems)
        lengths = report.prompt_tokens
        text = f"[{table}] {len(loader.source):,} prompts, {len(report.problems):,} that cannot be used"
        if lengths:
            text += f"; median length {median(lengths):,.0f} tokens, maximum {max(lengths):,}"
        console.print(f"{text}.", markup=False, highlight=False, soft_wrap=True)
        if reads_answer and report.unanswered:
            all_lack = report.unanswered == len(lengths)
            text = f"[{table}] {report.unanswered:,} of {len(lengths):,} prompts have no reference answer"
            text += ", which a reward reads; name its column with answer_key." if all_lack else "."
            style = "red" if all_lack else "yellow"
            console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
            num_bad += report.unanswered if all_lack else 0
        for column, count in report.lacking.items():
            all_lack = count == len(lengths)
            text = f"[{table}] {count:,} of {len(lengths):,} prompts have no column {column!r}, which the "
            text += f"reward {columns[column]!r} reads" + ("; name another one." if all_lack else ".")
            style = "red" if all_lack else "yellow"
            console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
            num_bad += count if all_lack else 0
        for unreadable in unreadable_references(table, report.references, experiment.reward):
            are_all = unreadable.num_prompts == len(lengths)
            style = "red" if are_all else "yellow"
            console.print(unreadable.text, style=style, markup=False, highlight=False, soft_wrap=True)
            num_bad += unreadable.num_prompts if are_all else 0
    return num_bad


def _print_statistics(table: str, loader: ExampleLoader, seq_len: int, console: Console) -> int:
    """Print the statistics of one table; return its number of bad examples."""
    report = loader.scan()
    for problem in fold_faults(report.problems):
        console.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
    lengths = report.row_tokens
    text = f"[{table}] {len(loader.source):,} examples, {len(report.problems):,} that cannot be trained on"
    if report.dropped:
        text += f", {report.dropped:,} dropped as longer than [training] seq_len = {seq_len}"
    console.print(f"{text}.", markup=False, highlight=False, soft_wrap=True)
    if lengths:
        share = report.loss_tokens / sum(lengths)
        console.print(
            f"{len(lengths):,} rows of {sum(lengths):,} tokens, {share:.0%} of them loss tokens; "
            f"median length {median(lengths):,.0f}, maximum {max(lengths):,}.",
            highlight=False,
            soft_wrap=True,
        )
        console.print(_histogram_table(lengths))
    return len(report.problems)


def _histogram_table(lengths: Sequence[int]) -> Table:
    table = Table("tokens", "rows", "", box=None, padding=(0, 1))
    bins = list(histogram(lengths))
    for low, high, count in bins:
        bar = Bar(max(count for _, _, count in bins), 0, count, width=40)
        table.add_row(f"{low:,} - {high:,}" if low < high else f"{low:,}", f"{count:,}", bar)
    return table


def histogram(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first length, last length, count) of bins of equal, round width; inner empty bins are included.

    Args:
        lengths: at least one length.
    """
    low, high = min(lengths), max(lengths)
    widths = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    width = next(each for each in widths if high // each - low // each < MAX_BINS)
    counts = Counter(length // width for length in lengths)
    for index in range(low // width, high // width + 1):
        yield index * width, (index + 1) * width - 1, counts[index]
