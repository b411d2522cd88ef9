"""Prompts: tokenized, ordered, and turned into the rollout requests of a step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.data.columns import json_columns
from titanrl.data.loader import NO_WORKERS, Loader, Workers
from titanrl.data.order import IndexSampler
from titanrl.errors import ConfigError
from titanrl.protocols import Prompt, PromptSource, RolloutRequest
from titanrl.registry import name_of

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.data.tokenizer import ChatTokenizer

__all__ = ["PromptLoader", "held_out_prompts", "prompt_feed", "prompt_id", "training_prompts"]


class TokenizedPrompt(NamedTuple):
    """A prompt as token ids, with everything that a request carries along; can be pickled."""

    ids: list[int]
    text: str
    """The text of the prompt, or of a chat's last message."""
    answer: str
    columns: dict[str, Any]
    prompt_id: int
    source: str


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
    ) -> None:
        if len(source) == 0:
            raise ConfigError(f"[{table}] has no prompts; name a source with at least one.")
        self.source, self._table, self._max_prompt_tokens = source, table, max_prompt_tokens
        order = IndexSampler(len(source), seed=seed, shuffle=shuffle)
        self.loader = Loader(partial(_read, source, encode, table, name), order, workers)
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
            if len(prompt.ids) > self._max_prompt_tokens:
                raise ConfigError(
                    f"[{self._table}] prompt {index} has {len(prompt.ids)} tokens, more than the "
                    f"{self._max_prompt_tokens} that [training] seq_len leaves beside "
                    f"[sampler] max_response_tokens; raise seq_len or drop the prompt."
                )
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
                )
                for sample_index in range(samples)
            ]
        return requests


def prompt_id(source: str, prompt: Prompt) -> int:
    """Return the identity of a prompt, in [0, 2^63): stable over steps, restarts, orders and machines.

    The first 63 bits of BLAKE2b over the source's name and the prompt's own ``id``, or without one its
    messages. An index would change when the dataset is reordered or extended; the content does not. So
    duplicates of one prompt share their id, whatever their reference answers and columns.

    Args:
        source: name of the prompt's source.
        prompt: the prompt.
    """
    identity = {"id": prompt.id} if prompt.id else {"messages": prompt.messages}
    text = json.dumps([source, identity], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _read(
    source: PromptSource, encode: Callable[[Prompt], list[int]], table: str, name: str, index: int
) -> TokenizedPrompt:
    prompt = source[index]
    text = prompt.messages if isinstance(prompt.messages, str) else prompt.messages[-1]["content"]
    try:
        ids = encode(prompt)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"[{table}] prompt {index} {error}") from error
    origin = prompt.source or name
    return TokenizedPrompt(
        ids, text, prompt.answer, json_columns(prompt.columns), prompt_id(origin, prompt), origin
    )


def training_prompts(experiment: Experiment, tokens: ChatTokenizer) -> PromptLoader:
    """Returns the prompts to which training samples answers, shuffled."""
    assert experiment.prompts is not None
    workers = Workers(experiment.loop.data_workers, ahead=experiment.loop.prompts_per_step)
    return prompt_feed(
        experiment,
        experiment.prompts.open(),
        tokens,
        table="prompts",
        workers=workers,
        name=name_of(experiment.prompts),
    )


def held_out_prompts(experiment: Experiment, tokens: ChatTokenizer) -> PromptLoader | None:
    """Returns the prompts that a validation asks, as their source has them; None: it asks none."""
    evaluation = experiment.evaluation
    if evaluation is None or evaluation.prompts is None:
        return None
    source, name = evaluation.prompts.open(), name_of(evaluation.prompts)
    return prompt_feed(experiment, source, tokens, table="evaluation.prompts", shuffle=False, name=name)


def prompt_feed(
    experiment: Experiment,
    source: PromptSource,
    tokens: ChatTokenizer,
    *,
    table: str,
    shuffle: bool = True,
    workers: Workers = NO_WORKERS,
    name: str = "",
) -> PromptLoader:
    """Returns a feed of one source of the experiment, which leaves room for the answers.

    Args:
        table: where the source stands. workers: who reads.
    """
    assert experiment.sampler is not None
    room = experiment.training.seq_len - experiment.sampler.max_response_tokens
    return PromptLoader(
        source,
        tokens.encode,
        seed=experiment.run.seed,
        max_prompt_tokens=room,
        shuffle=shuffle,
        table=table,
        workers=workers,
        name=name,
    )
