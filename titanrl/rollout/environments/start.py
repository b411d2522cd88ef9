"""The live environment of an [environment] table, in this rank's process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from titanrl.protocols import EnvironmentContext
from titanrl.rollout.environments.chat import TemplateChat
from titanrl.rollout.environments.episode import Limits
from titanrl.rollout.environments.runner import EnvironmentRunner

if TYPE_CHECKING:
    from titanrl.config.environment import EnvironmentTable
    from titanrl.data.tokenizer import ChatTokenizer
    from titanrl.protocols import SamplerSettings

__all__ = ["start_environment"]


def start_environment(
    table: EnvironmentTable,
    tokenizer: ChatTokenizer,
    *,
    sampler: SamplerSettings,
    max_length: int,
    seed: int,
    by_turn: bool = False,
) -> EnvironmentRunner:
    """Return the live environment of a table.

    Args:
        table: the [environment] table.
        tokenizer: the model's tokenizer.
        sampler: the [sampler] table, for the longest response.
        max_length: longest row, tokens.
        seed: the run's seed.
        by_turn: whether each turn is a row of its own.
    """
    limits = Limits(max_length, sampler.max_response_tokens, table.max_turns)
    context = EnvironmentContext(
        tokenizer=tokenizer.tokenizer,
        eos_ids=tokenizer.eos_ids,
        max_length=max_length,
        max_response_tokens=sampler.max_response_tokens,
        max_turns=table.max_turns,
        seed=seed,
        open_chat=partial(TemplateChat, tokenizer),
    )
    return EnvironmentRunner(
        table.component.start(context),
        limits,
        timeout_seconds=table.timeout_seconds,
        concurrency=table.concurrency,
        by_turn=by_turn,
    )
