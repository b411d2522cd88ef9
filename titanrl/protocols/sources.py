"""The contracts of what is trained on: prompts to be answered, and answers that stand already."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias

__all__ = [
    "DataSettings",
    "DataSource",
    "Example",
    "Messages",
    "Prompt",
    "PromptSource",
    "SourceSettings",
    "ProcessStep",
]

Messages: TypeAlias = tuple[dict[str, str], ...]
"""A chat: role and content of each message."""


class Prompt(NamedTuple):
    """One task: what is asked, and what a reward needs to judge the answer."""

    messages: Messages | str
    """Chat messages (rendered by the chat template), or text that is tokenized as it is."""
    answer: str = ""
    """Reference answer, or JSON that the task's scorer understands."""


class PromptSource(Protocol):
    """A finite, indexable set of prompts; shuffling and position are the loop's."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Prompt: ...


class SourceSettings(Protocol):
    """A registered source of prompts: its fields are its TOML table."""

    def open(self) -> PromptSource: ...


class ProcessStep(NamedTuple):
    """One step of an answer, judged by itself."""

    text: str
    label: float
    """How right it is, in [0, 1]; it stands on the first token of ``end``, which has seen the whole step."""
    end: str = "\n"
    """What follows the step, not empty."""


class Example(NamedTuple):
    """A row that is trained on as it stands instead of being sampled."""

    prompt: Messages | str
    """What comes before; nothing of it is trained."""
    response: Messages | str | tuple[ProcessStep, ...]
    """Messages: every assistant turn is trained; text: all of it and an end token; or process steps."""
    scalars: Mapping[str, float] = MappingProxyType({})
    """Batch keys [N] with the row's number for each: ``reward``, ``margin``."""
    head: str = ""
    """Which of [model] heads the row's labels are about; empty: the weighted sum of all."""


class DataSource(Protocol):
    """A finite, indexable set of examples; each is the rows of one group, which stay together.

    A preference pair is a group of two, chosen first. Shuffling and position are the loop's.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[Example, ...]:
        """Raises:
        ValueError: a bad example: the column, what is wrong with it, the remedy; its place is added.
        """
        ...

    def place(self, index: int) -> str:
        """Returns where an example stands, as messages name it: ``pairs.jsonl:12``."""
        ...


class DataSettings(Protocol):
    """A registered source of fixed rows; ``out_keys`` is what tells it from a source of prompts."""

    @property
    def on_overlong(self) -> Literal["error", "drop"]:
        """What becomes of examples with a row longer than [training] seq_len."""
        ...

    @property
    def out_keys(self) -> tuple[str, ...]:
        """Batch keys that every row brings beside its tokens: its scalars, and ``token_reward`` of steps."""
        ...

    @property
    def is_paired(self) -> bool:
        """Whether rows come in pairs, the chosen before the rejected."""
        ...

    def open(self) -> DataSource:
        """Returns the examples, none of them read yet: bad ones raise when they are.

        Raises:
            ConfigError: there are none, or they cannot be reached.
        """
        ...
