"""Which prompts a step trains on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from titanrl.data.loader import NO_WORKERS, Loader, Workers
from titanrl.data.order import IndexSampler
from titanrl.errors import ConfigError
from titanrl.protocols import Prompt, PromptSource, RolloutRequest

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.data.tokenizer import ChatTokenizer

__all__ = ["PromptLoader", "held_out_prompts", "prompt_feed", "training_prompts"]


class PromptLoader:
    """Walks a prompt source in a new order each epoch; the order is a function of (seed, position) alone.

    Args:
        source: the prompts. encode: prompt -> token ids. seed: of the shuffle.
        max_prompt_tokens: prompts longer than this are refused, never cut.
        table: where the source stands in the experiment file. workers: who reads.

    Raises:
        ConfigError: the source is empty; later, a prompt is too long or can't be tokenized.
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
    ) -> None:
        if len(source) == 0:
            raise ConfigError(f"[{table}] holds no prompt; name a source with at least one.")
        self.source, self._table, self._max_prompt_tokens = source, table, max_prompt_tokens
        order = IndexSampler(len(source), seed=seed, shuffle=shuffle)
        self.loader = Loader(partial(_read, source, encode, table), order, workers)
        """Where the feed stands, for checkpoints."""

    def next_batch(self, count: int, samples: int, first_group: int = 0) -> list[RolloutRequest]:
        """Returns ``count * samples`` rows: the next ``count`` prompts, each for ``samples`` answers.

        Args:
            first_group: number of the first of these groups in its step; it enters the samples' seeds.
        """
        rows: list[RolloutRequest] = []
        for group in range(first_group, first_group + count):
            index, (ids, text, answer) = next(self.loader)
            if len(ids) > self._max_prompt_tokens:
                raise ConfigError(
                    f"[{self._table}] prompt {index} has {len(ids)} tokens, more than the "
                    f"{self._max_prompt_tokens} that [training] seq_len leaves beside "
                    f"[sampler] max_response_tokens; raise seq_len or drop the prompt."
                )
            rows += [
                RolloutRequest(prompt_ids=ids, group=group, sample=sample, text=text, answer=answer)
                for sample in range(samples)
            ]
        return rows


def _read(
    source: PromptSource, encode: Callable[[Prompt], list[int]], table: str, index: int
) -> tuple[list[int], str, str]:
    """Returns a prompt's token ids, its text for rewards and logs, and its reference answer."""
    prompt = source[index]
    text = prompt.messages if isinstance(prompt.messages, str) else prompt.messages[-1]["content"]
    try:
        return encode(prompt), text, prompt.answer
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"[{table}] prompt {index} {error}") from error


def training_prompts(experiment: Experiment, tokens: ChatTokenizer) -> PromptLoader:
    """Returns the prompts to which training samples answers, shuffled."""
    assert experiment.prompts is not None
    workers = Workers(experiment.loop.data_workers, ahead=experiment.loop.prompts_per_step)
    return prompt_feed(experiment, experiment.prompts.open(), tokens, table="prompts", workers=workers)


def held_out_prompts(experiment: Experiment, tokens: ChatTokenizer) -> PromptLoader | None:
    """Returns the prompts that a validation asks, as their source has them; None: it asks none."""
    evaluation = experiment.evaluation
    if evaluation is None or evaluation.prompts is None:
        return None
    source = evaluation.prompts.open()
    return prompt_feed(experiment, source, tokens, table="evaluation.prompts", shuffle=False)


def prompt_feed(
    experiment: Experiment,
    source: PromptSource,
    tokens: ChatTokenizer,
    *,
    table: str,
    shuffle: bool = True,
    workers: Workers = NO_WORKERS,
) -> PromptLoader:
    """Returns a feed of one source of the experiment, which leaves room for the answers.

    Args:
        table: where the source stands. workers: who reads.
    """
    assert experiment.sampler is not None
    room = experiment.training.seq_len - experiment.sampler.max_response_tokens
    return PromptLoader(
        source, tokens.encode, seed=experiment.run.seed, max_prompt_tokens=room, shuffle=shuffle,
        table=table, workers=workers,
    )  # fmt: skip
