"""Contracts of data: prompts that responses are sampled for, and examples of an existing dataset."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

__all__ = [
    "DataSettings",
    "DataSource",
    "Example",
    "Messages",
    "ProcessStep",
    "Prompt",
    "PromptSource",
    "SourceSettings",
]

Messages: TypeAlias = tuple[dict[str, Any], ...]
"""A chat: role and content of each message, and any other keys, all of which the chat template gets."""

NO_COLUMNS: Mapping[str, Any] = {}
"""The columns of a row that has none; a plain dict, so that whatever holds it can be pickled."""


class Prompt(NamedTuple):
    """One task: the prompt and everything that a reward needs to score a response."""

    messages: Messages | str
    """Chat messages, rendered by the chat template, or text that is tokenized as it is."""
    answer: str = ""
    """Reference answer, or JSON that the task's scorer understands."""
    columns: Mapping[str, Any] = NO_COLUMNS
    """The other columns of the dataset row; rewards read them at ``("text", "columns")`` as JSON values."""
    id: str = ""
    """The row's own identity, if the source has a unique one; empty: the messages identify the prompt."""
    source: str = ""
    """Name of the source, for a source that mixes others; empty: the registered name."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Schemas of the functions that the model may call, for the chat template."""


class PromptSource(Protocol):
    """A finite, indexable set of prompts; the training loop holds order and position."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Prompt: ...


class SourceSettings(Protocol):
    """A registered source of prompts: its fields are its TOML table."""

    def open(self) -> PromptSource: ...


class ProcessStep(NamedTuple):
    """One step of a response with a label of its own."""

    text: str
    label: float
    """Correctness in [0, 1]; it belongs to the first token of ``separator``, which follows the whole step."""
    separator: str = "\n"
    """Text after the step, not empty."""


class Example(NamedTuple):
    """A row of an existing dataset, which is trained on without sampling."""

    prompt: Messages | str
    """The text before the response; it is masked."""
    response: Messages | str | tuple[ProcessStep, ...]
    """Messages: every assistant turn is trained, but those of ``weight`` 0; text: all of it and an end
    token; or process steps."""
    scalars: Mapping[str, float] = MappingProxyType({})
    """Batch keys [N] -> the row's value: ``reward``, ``margin``."""
    head: str = ""
    """Name in [model] heads that the row's labels are about; empty: the weighted sum of all heads."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Schemas of the functions that the model may call, for the chat template."""


class DataSource(Protocol):
    """A finite, indexable set of examples; each gives the rows of one group, which stay together.

    A preference pair is a group of two, the chosen row first. The training loop holds order and position.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[Example, ...]:
        """Return the rows of one example.

        Raises:
            ValueError: a bad example: the column, what is wrong and how to fix it; the location is added.
        """
        ...

    def location(self, index: int) -> str:
        """Return the location of an example for messages: ``pairs.jsonl:12``."""
        ...


class DataSettings(Protocol):
    """A registered source of dataset examples; ``out_keys`` distinguishes it from a source of prompts."""

    @property
    def on_overlong(self) -> Literal["error", "drop"]:
        """Policy for examples with a row longer than [training] seq_len."""
        ...

    @property
    def out_keys(self) -> tuple[str, ...]:
        """Batch keys that every row has beside its tokens: its scalars, and ``token_reward`` of steps."""
        ...

    @property
    def is_paired(self) -> bool:
        """Whether rows come in pairs, the chosen before the rejected."""
        ...

    def open(self) -> DataSource:
        """Return the examples, none of which is read yet: a bad one raises when it is read.

        Raises:
            ConfigError: there are no examples, or they cannot be reached.
        """
        ...
