"""Fixed answers from JSON Lines, Parquet or a Hugging Face dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from titanrl.components.sources.dataset.formats import COLUMNS, OUT_KEYS, PARSERS, Format, Record
from titanrl.components.sources.records.files import Records, open_records
from titanrl.errors import did_you_mean
from titanrl.protocols import Example
from titanrl.registry import register

__all__ = ["Dataset", "Examples"]


@register("source", "dataset")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Reads examples that are trained on as they stand: conversations, preference pairs, judged answers.

    Columns of a record, by format; a text is a string or a list of chat messages (role, content):

        messages           messages: every assistant turn is trained
        prompt_completion  prompt, completion
        preference         prompt, chosen, rejected, maybe margin; or prompt, answers (best first), maybe
                           scores: every two of unequal rank become a pair, all pairs of a prompt one group
        ranked             the same columns; the answers stay one group, with reward = score
        unpaired           prompt, completion, label (true or false) -> reward 1 or 0
        stepwise           prompt, steps (texts), labels (of each, true or false or in [0, 1])

    Answers that begin with another role than assistant are whole conversations: what they share is the
    prompt. Without scores an answer's score is the number of those ranked below it. The margin of a pair is
    the record's, or the difference of the scores, or 0. With several [model] heads, a column head of a
    comparison or of judged steps says which one it is about. Every record is checked before training.
    """

    path: str
    """A .jsonl or .parquet file or a folder, relative to the working directory, or a hub's id."""
    format: Format
    """What a record holds."""
    split: str | None = None
    """Split of a Hugging Face dataset, also a slice such as train[:1000]; omitted: train."""
    subset: str | None = None
    """Named configuration of a Hugging Face dataset; omitted: its only one."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column of this format -> its name in the file, where they differ: {prompt = "question"}."""
    chat: bool = False
    """Whether plain texts become messages: the prompt the user's, the answer the assistant's."""
    separator: str = "\n"
    """Text after each step, not empty; its first token carries the step's label. Format stepwise only."""
    too_long: Literal["refuse", "drop"] = "refuse"
    """Examples with a row longer than [training] seq_len: refuse looks at all of them before training, drop
    leaves them out and counts them."""

    def __post_init__(self) -> None:
        for column in self.columns:
            known = COLUMNS[self.format]
            if column not in known:
                raise ValueError(
                    f"columns must name what format {self.format!r} reads, got {column!r}"
                    f"{did_you_mean(column, known) or ';'} columns: {', '.join(known)}."
                )
        if not self.separator:
            raise ValueError("separator must not be empty, got ''; a label needs a token to stand on.")
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
            ConfigError: no such data, or no record in it.
        """
        return Examples(self, open_records(self.path, self.split, self.subset, "source 'dataset'"))


@dataclass(frozen=True, slots=True)
class Examples:
    """The examples of a file, in its order; each is parsed when it is asked for, and refused if it is bad."""

    settings: Dataset
    records: Records

    def __len__(self) -> int:
        return len(self.records.values)

    def __getitem__(self, index: int) -> tuple[Example, ...]:
        settings = self.settings
        record = Record(self.records.values[index], settings.columns, settings.chat, settings.separator)
        return PARSERS[settings.format](record)

    def place(self, index: int) -> str:
        return self.records.place(index)
