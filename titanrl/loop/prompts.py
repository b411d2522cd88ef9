"""Which prompts a step trains on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from titanrl.errors import ConfigError
from titanrl.loop.order import Order
from titanrl.protocols import Prompt, PromptRow, PromptSource

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.loop.tokens import Tokens

__all__ = ["PromptFeed", "prompt_feeds"]


class PromptFeed:
    """Walks a prompt source in a new order each epoch; the order is a function of (seed, position) alone.

    Args:
        source: the prompts. encode: prompt -> token ids. seed: of the shuffle.
        max_prompt_tokens: prompts longer than this are refused, never cut.

    Raises:
        ConfigError: the source is empty; later, a prompt is too long.
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
    ) -> None:
        if len(source) == 0:
            raise ConfigError(f"[{table}] holds no prompt; name a source with at least one.")
        self.source, self.encode, self.table = source, encode, table
        self.max_prompt_tokens = max_prompt_tokens
        self._order = Order(len(source), seed=seed, shuffle=shuffle)

    def take(self, count: int, samples: int, first_group: int = 0) -> list[PromptRow]:
        """Returns ``count * samples`` rows: the next ``count`` prompts, each for ``samples`` answers.

        Args:
            first_group: number of the first of these groups in its step; it enters the samples' seeds.
        """
        rows: list[PromptRow] = []
        for group in range(first_group, first_group + count):
            index = self._order.take()
            prompt = self.source[index]
            ids = self.encode(prompt)
            if len(ids) > self.max_prompt_tokens:
                raise ConfigError(
                    f"[{self.table}] prompt {index} has {len(ids)} tokens, more than the "
                    f"{self.max_prompt_tokens} that [training] seq_len leaves beside "
                    f"[sampler] max_response_tokens; raise seq_len or drop the prompt."
                )
            text = prompt.messages if isinstance(prompt.messages, str) else prompt.messages[-1]["content"]
            rows += [
                PromptRow(prompt_ids=ids, group=group, sample=sample, text=text, answer=prompt.answer)
                for sample in range(samples)
            ]
        return rows

    def state_dict(self) -> dict[str, Any]:
        return self._order.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._order.load_state_dict(state_dict)


def prompt_feeds(experiment: Experiment, tokens: Tokens) -> tuple[PromptFeed, PromptFeed | None]:
    """Returns the prompts of training, and those held out if there is an [evaluation]."""
    sampler, evaluation = experiment.sampler, experiment.evaluation
    assert sampler is not None
    assert experiment.prompts is not None
    seed, room = experiment.run.seed, experiment.training.seq_len - sampler.max_response_tokens
    feed = PromptFeed(experiment.prompts.open(), tokens.encode, seed=seed, max_prompt_tokens=room)
    if evaluation is None:
        return feed, None
    assert evaluation.prompts is not None
    held_out = PromptFeed(
        evaluation.prompts.open(), tokens.encode, seed=seed, max_prompt_tokens=room, shuffle=False,
        table="evaluation.prompts",
    )  # fmt: skip
    return feed, held_out
