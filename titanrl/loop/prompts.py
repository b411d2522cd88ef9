"""Which prompts a step trains on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from titanrl.errors import ConfigError
from titanrl.loop.order import Order
from titanrl.protocols import Prompt, PromptRow, PromptSource, SourceSettings

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.loop.tokens import Tokens

__all__ = ["PromptFeed", "held_out_prompts", "training_prompts"]


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


def training_prompts(experiment: Experiment, tokens: Tokens) -> PromptFeed:
    """Returns the prompts to which training samples answers, shuffled."""
    assert experiment.prompts is not None
    return _feed(experiment, experiment.prompts, tokens, table="prompts")


def held_out_prompts(experiment: Experiment, tokens: Tokens) -> PromptFeed | None:
    """Returns the prompts that a validation asks, as their source has them; None: it asks none."""
    evaluation = experiment.evaluation
    if evaluation is None or evaluation.prompts is None:
        return None
    return _feed(experiment, evaluation.prompts, tokens, table="evaluation.prompts", shuffle=False)


def _feed(
    experiment: Experiment, settings: SourceSettings, tokens: Tokens, *, table: str, shuffle: bool = True
) -> PromptFeed:
    assert experiment.sampler is not None
    room = experiment.training.seq_len - experiment.sampler.max_response_tokens
    return PromptFeed(
        settings.open(), tokens.encode, seed=experiment.run.seed, max_prompt_tokens=room, shuffle=shuffle,
        table=table,
    )  # fmt: skip
