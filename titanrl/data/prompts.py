"""Prompts: tokenized, ordered, and turned into the rollout requests of a step."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from titanrl.data.columns import json_columns
from titanrl.data.loader import NO_WORKERS, Loader, Workers
from titanrl.data.order import IndexSampler
from titanrl.data.rendered import content_text
from titanrl.errors import ConfigError
from titanrl.ops.columns import lookup
from titanrl.protocols import Messages, Prompt, PromptSource, RolloutRequest
from titanrl.registry import name_of

if TYPE_CHECKING:
    from titanrl.config.engine_tables import Training
    from titanrl.config.tables import Evaluation, Loop, Run
    from titanrl.data.tokenizer import ChatTokenizer
    from titanrl.protocols import SamplerSettings, SourceSettings

__all__ = [
    "PromptLoader",
    "PromptTables",
    "conversation_text",
    "held_out_prompts",
    "open_prompts",
    "prompt_id",
    "training_prompts",
]


class PromptTables(Protocol):
    """The tables of an experiment that its loaders of prompts read."""

    @property
    def run(self) -> Run: ...
    @property
    def prompts(self) -> SourceSettings | None: ...
    @property
    def sampler(self) -> SamplerSettings | None: ...
    @property
    def loop(self) -> Loop: ...
    @property
    def evaluation(self) -> Evaluation | None: ...
    @property
    def training(self) -> Training: ...


class TokenizedPrompt(NamedTuple):
    """A prompt as token ids, with everything that a request carries along; can be pickled."""

    ids: list[int]
    text: str
    """The text of the prompt, or of a chat's last message."""
    answer: str
    columns: dict[str, Any]
    prompt_id: int
    source: str
    conversation: str
    """The whole prompt as text."""
    messages: Messages | str = ""
    """The prompt before it was rendered."""


class PromptReport(NamedTuple):
    """The contents of a source of prompts."""

    problems: list[tuple[str, str]]
    """Location and fault of each prompt that cannot be used."""
    prompt_tokens: list[int]
    """Length of each prompt that can be tokenized."""
    unanswered: int
    """Number of these prompts without a reference answer."""
    lacking: dict[str, int]
    """Column that a reward needs -> number of these prompts without it; absent if all have it."""
    references: dict[str, int]
    """Reference answer -> number of these prompts that have it."""


class PromptLoader:
    """Iterates over a prompt source in a new order each epoch, a function of (seed, position) alone.

    Args:
        source: the prompts.
        encode: prompt -> token ids.
        seed: seed of the shuffle.
        max_prompt_tokens: longest prompt; a longer one is an error, it is never truncated.
        shuffle: false keeps the order of the source.
        table: table of the source in the experiment file.
        workers: processes that read and tokenize ahead.
        name: name of the source, part of each prompt's identity.
        out_keys: registered batch keys that the rows have as columns.

    Raises:
        ConfigError: the source is empty; later, a prompt is too long or cannot be tokenized.
    """

    def __init__(
        self,
        source: PromptSource,
        encode: Callable[[Prompt], list[int]],
        *,
        seed: int,
        max_prompt_tokens: int,
        shuffle: bool = True,
        table: str = "prompts",
        workers: Workers = NO_WORKERS,
        name: str = "",
        out_keys: Sequence[str] = (),
    ) -> None:
        if len(source) == 0:
            raise ConfigError(f"[{table}] has no prompts; name a source with at least one.")
        self.source, self._table, self._max_prompt_tokens = source, table, max_prompt_tokens
        self._out_keys = tuple(out_keys)
        order = IndexSampler(len(source), seed=seed, shuffle=shuffle)
        self._read = partial(_read, source, encode, table, name)
        self.loader = Loader(self._read, order, workers)
        """Holds the position, for checkpoints."""

    def next_batch(self, count: int, samples: int, first_group: int = 0) -> list[RolloutRequest]:
        """Return ``count * samples`` requests: the next ``count`` prompts, each ``samples`` times.

        Args:
            count: number of prompts.
            samples: completions per prompt (G).
            first_group: index of the first of these prompts in its step; it is part of the seeds.
        """
        requests: list[RolloutRequest] = []
        for prompt_index in range(first_group, first_group + count):
            index, prompt = next(self.loader)
            if fault := self._fault(prompt):
                raise ConfigError(f"[{self._table}] prompt {index} {fault}")
            requests += [
                RolloutRequest(
                    prompt_ids=prompt.ids,
                    prompt_index=prompt_index,
                    sample_index=sample_index,
                    text=prompt.text,
                    answer=prompt.answer,
                    columns=prompt.columns,
                    prompt_id=prompt.prompt_id,
                    source=prompt.source,
                    extras={key: prompt.columns[key] for key in self._out_keys},
                    conversation=prompt.conversation,
                    messages=prompt.messages,
                )
                for sample_index in range(samples)
            ]
        return requests

    def scan(self, advance: Callable[[], None], columns: Iterable[str] = ()) -> PromptReport:
        """Return a report on all prompts, rendered and tokenized.

        Args:
            advance: called after each prompt.
            columns: columns that the rewards need, also within tables: `a.b`.
        """
        problems: list[tuple[str, str]] = []
        lengths: list[int] = []
        unanswered, lacking, references = 0, Counter[str](), Counter[str]()
        for index in range(len(self.source)):
            try:
                prompt = self._read(index)
            except ConfigError as error:
                problems.append((f"[{self._table}]", str(error)))
            else:
                lengths.append(len(prompt.ids))
                unanswered += not prompt.answer
                references.update([prompt.answer] if prompt.answer else [])
                lacking.update(column for column in columns if lookup(prompt.columns, column) is None)
                if fault := self._fault(prompt):
                    problems.append((f"[{self._table}] prompt {index}", fault))
            advance()
        return PromptReport(problems, lengths, unanswered, dict(lacking), dict(references))

    def _fault(self, prompt: TokenizedPrompt) -> str:
        """Return the reason why a prompt cannot be used, or an empty string."""
        if len(prompt.ids) > self._max_prompt_tokens:
            return (
                f"has {len(prompt.ids)} tokens, more than the {self._max_prompt_tokens} that [training] "
                "seq_len leaves beside [sampler] max_response_tokens; raise seq_len or drop the prompt."
            )
        if missing := [key for key in self._out_keys if key not in prompt.columns]:
            return (
                f"has no column {missing[0]!r}, which its source declares in out_keys; add it. "
                f"Columns: {', '.join(prompt.columns) or 'none'}."
            )
        return ""


def conversation_text(messages: Messages | str) -> str:
    """Return a whole prompt as text: of a chat with several messages, each under its role."""
    if isinstance(messages, str):
        return messages
    if len(messages) == 1:
        return content_text(messages[0])
    return "\n\n".join(f"[{each['role']}]\n{_message_text(each)}" for each in messages)


def _message_text(message: Mapping[str, Any]) -> str:
    """Return thoughts, content and tool calls of a message, those that it has."""
    calls = [
        json.dumps(call.get("function", call), ensure_ascii=False) for call in message.get("tool_calls") or ()
    ]
    return "\n".join(filter(None, [message.get("reasoning_content"), content_text(message), *calls]))


def prompt_id(source: str, prompt: Prompt) -> int:
    """Return the identity of a prompt, in [0, 2^63): stable over steps, restarts, orders and machines.

    The first 63 bits of BLAKE2b over the source's name and the prompt's own ``id``, or without one its
    messages. An index would change when the dataset is reordered or extended; the content does not. So
    duplicates of one prompt share their id, whatever their reference answers and columns.

    Args:
        source: name of the prompt's source.
        prompt: the prompt.
    """
    identity: dict[str, Any] = {"id": prompt.id} if prompt.id else {"messages": prompt.messages}
    if prompt.tools and not prompt.id:
        identity["tools"] = prompt.tools
    text = json.dumps([source, identity], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _read(
    source: PromptSource, encode: Callable[[Prompt], list[int]], table: str, name: str, index: int
) -> TokenizedPrompt:
    prompt = source[index]
    text = prompt.messages if isinstance(prompt.messages, str) else content_text(prompt.messages[-1])
    try:
        ids = encode(prompt)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"[{table}] prompt {index} {error}") from error
    origin = prompt.source or name
    return TokenizedPrompt(
        ids,
        text,
        prompt.answer,
        json_columns(prompt.columns),
        prompt_id(origin, prompt),
        origin,
        conversation_text(prompt.messages),
        prompt.messages,
    )


def open_prompts(
    settings: SourceSettings,
    tokenizer: ChatTokenizer,
    *,
    training: Training,
    sampler: SamplerSettings,
    seed: int,
    table: str = "prompts",
    shuffle: bool = True,
    workers: Workers = NO_WORKERS,
) -> PromptLoader:
    """Return the loader of a source of prompts; its prompts leave space for the longest response.

    Args:
        settings: the table of the source.
        tokenizer: encodes the prompts.
        training: the [training] table, for the longest row.
        sampler: the [sampler] table, for the longest response.
        seed: seed of the shuffle.
        table: name of the source's table, for messages.
        shuffle: false keeps the order of the source.
        workers: processes that read and tokenize ahead.

    Raises:
        ConfigError: the source is empty, or cannot be opened.
    """
    return PromptLoader(
        settings.open(),
        tokenizer.encode,
        seed=seed,
        max_prompt_tokens=training.seq_len - sampler.max_response_tokens,
        shuffle=shuffle,
        table=table,
        workers=workers,
        name=name_of(settings),
        out_keys=getattr(settings, "out_keys", ()),
    )


def training_prompts(tables: PromptTables, tokenizer: ChatTokenizer) -> PromptLoader:
    """Return the loader of [prompts], shuffled."""
    assert tables.prompts is not None
    assert tables.sampler is not None
    return open_prompts(
        tables.prompts,
        tokenizer,
        training=tables.training,
        sampler=tables.sampler,
        seed=tables.run.seed,
        workers=Workers(tables.loop.data_workers, tables.loop.prompts_per_step),
    )


def held_out_prompts(tables: PromptTables, tokenizer: ChatTokenizer) -> PromptLoader | None:
    """Return the loader of [evaluation.prompts], in the order of the source; None without that table."""
    evaluation = tables.evaluation
    if evaluation is None or evaluation.prompts is None:
        return None
    assert tables.sampler is not None
    return open_prompts(
        evaluation.prompts,
        tokenizer,
        training=tables.training,
        sampler=tables.sampler,
        seed=tables.run.seed,
        table="evaluation.prompts",
        shuffle=False,
    )
