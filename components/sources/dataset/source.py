"""Offline examples from JSON Lines, Parquet or a Hugging Face dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from titanrl.components.sources.dataset.formats import COLUMNS, OUT_KEYS, PARSERS, Format, Record
from titanrl.components.sources.records.files import Records, open_records
from titanrl.errors import did_you_mean
from titanrl.protocols import Example
from titanrl.registry import register

__all__ = ["Dataset", "Examples"]


@register("source", "dataset")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Offline examples: conversations, preference pairs, scored responses or process-reward labels.

    Columns of a record, by format; a text is a string or a list of chat messages (role, content):

        messages           messages: every assistant turn is trained on
        prompt_completion  prompt, completion
        preference         prompt, chosen, rejected, optionally margin; or prompt, answers (best first),
                           optionally scores: any two responses of different rank form a pair, and all pairs
                           of a prompt form one group
        ranked             the same columns; the responses stay one group, with reward = score
        unpaired           prompt, completion, label (true or false) -> reward 1 or 0
        stepwise           prompt, steps (texts), labels (of each, true or false or in [0, 1])

    Responses that begin with a role other than assistant are entire conversations; their common prefix is
    the prompt. Without scores, the score of a response is the number of responses ranked below it. The
    margin of a pair is the record's, or the difference of the scores, or 0. With several [model] heads, the
    column head of a comparison or of labelled steps names the head to train. Every record is checked before
    training.
    """

    path: str
    """Path of a .jsonl, .json or .parquet file or of a folder, relative to the working directory, or the id
    of a hub dataset. A .json file may hold one array of objects."""
    format: Format
    """Format of a record."""
    split: str | None = None
    """Split of a Hugging Face dataset, or a slice such as train[:1000]; omitted: train."""
    subset: str | None = None
    """Named configuration of a Hugging Face dataset; omitted: its only one."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column of this format -> its name in the file, where they differ: {prompt = "question"}."""
    chat: bool = False
    """Convert plain texts to messages: the prompt to the user's, the response to the assistant's."""
    separator: str = "\n"
    """Text after each step, not empty; its first token carries the step's label. Format stepwise only."""
    renamed: ClassVar[dict[str, str]] = {"too_long": "on_overlong", "on_overlong=refuse": "error"}
    on_overlong: Literal["error", "drop"] = "error"
    """Treatment of examples with a row longer than [training] seq_len. error: check all examples before
    training and refuse them; drop: skip and count them."""

    def __post_init__(self) -> None:
        for column in self.columns:
            known = COLUMNS[self.format]
            if column not in known:
                raise ValueError(
                    f"columns must name columns of format {self.format!r}, got {column!r}"
                    f"{did_you_mean(column, known) or ';'} columns: {', '.join(known)}."
                )
        if not self.separator:
            raise ValueError("separator must not be empty, got ''; its first token carries the label.")
        if self.separator != "\n" and self.format != "stepwise":
            raise ValueError(f"separator is not used by format {self.format!r}; leave it out.")

    @property
    def out_keys(self) -> tuple[str, ...]:
        return OUT_KEYS[self.format]

    @property
    def is_paired(self) -> bool:
        return self.format == "preference"

    def open(self) -> Examples:
        """Returns the examples.

        Raises:
            ConfigError: the data does not exist or has no records.
        """
        return Examples(self, open_records(self.path, self.split, self.subset, "source 'dataset'"))


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples of a file, in order; each is parsed when it is read, and an invalid one raises."""

    settings: Dataset
    records: Records

    def __len__(self) -> int:
        return len(self.records.values)

    def __getitem__(self, index: int) -> tuple[Example, ...]:
        settings = self.settings
        record = Record(self.records.values[index], settings.columns, settings.chat, settings.separator)
        return PARSERS[settings.format](record)

    def location(self, index: int) -> str:
        return self.records.location(index)
