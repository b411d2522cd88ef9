"""Contracts of sampling: requests, completions, samplers and their settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from titanrl.protocols.sources import NO_COLUMNS, Messages

if TYPE_CHECKING:
    import torch

__all__ = [
    "Completion",
    "FinishReason",
    "RolloutRequest",
    "Sampler",
    "SamplerContext",
    "SamplerSettings",
    "temperature_at",
]


class FinishReason(IntEnum):
    """Why a completion ended; the batch key ``finish_reason`` holds the number."""

    STOP = 0
    """The policy sampled an end token."""
    LENGTH = 1
    """The completion reached the token limit."""
    ABORT = 2
    """The sampler or the environment gave up."""

    @property
    def label(self) -> str:
        """The lower-case name, as TOML, logs and HTTP replies write it: ``stop``, ``length``, ``abort``."""
        return self.name.lower()


class RolloutRequest(NamedTuple):
    """One completion to be sampled; requests of a group share the prompt and differ in ``sample_index``."""

    prompt_ids: Sequence[int]
    prompt_index: int
    """Index of the prompt in its step; together with step and sample_index it determines the seed."""
    sample_index: int
    """Index within the group, 0 .. G-1."""
    text: str = ""
    """The prompt as text, for scripted samplers, rewards and logs."""
    answer: str = ""
    """Reference answer."""
    columns: Mapping[str, Any] = NO_COLUMNS
    """The other columns of the dataset row, JSON values."""
    prompt_id: int = 0
    """Identity of the prompt, stable over steps and restarts; see ``titanrl.data.prompts.prompt_id``."""
    source: str = ""
    """Name of the source that the prompt comes from."""
    extras: Mapping[str, Any] = NO_COLUMNS
    """Registered batch key that the source's ``out_keys`` name -> the row's value."""
    conversation: str = ""
    """The whole prompt as text, a chat with the role of each message; empty: ``text`` is the whole prompt."""
    messages: Messages | str = ""
    """The prompt before it was rendered, for environments."""
    turn: int = 0
    """Number of requests of its rollout and agent before this one."""


NO_EXTRAS: Mapping[str, Any] = {}
"""The extras of a completion that has none; a plain dict, so that completions can be pickled."""


class Completion(NamedTuple):
    """A sampled continuation of one prompt: token ids as they were sampled, never decoded and re-encoded."""

    ids: Sequence[int]
    """Token ids after the prompt, including the end token if one was sampled."""
    logprobs: Sequence[float]
    """Log-prob of each id under the distribution that was sampled from, nats; same length as ``ids``. The
    values at given tokens are ignored."""
    finish_reason: int
    """A ``FinishReason``."""
    mask: Sequence[bool] | None = None
    """True where the policy sampled the token, False where it was given: tool results, text between turns.
    Only sampled tokens are trained. None: all are sampled."""
    versions: Sequence[int] | None = None
    """Policy version that sampled each token. None: the sampler's version for all of them."""
    extras: Mapping[str, Any] = NO_EXTRAS
    """Registered batch key that the sampler's ``out_keys`` name -> its value: a number or a text for shape
    [N], one number per id for shape [N, L]."""

    def truncated(self, count: int, finish_reason: FinishReason) -> Completion:
        """Return the first ``count`` tokens, which end for ``finish_reason``."""
        mask = None if self.mask is None else self.mask[:count]
        versions = None if self.versions is None else self.versions[:count]
        extras = {
            key: value[:count] if isinstance(value, (list, tuple)) else value
            for key, value in self.extras.items()
        }
        return Completion(self.ids[:count], self.logprobs[:count], finish_reason, mask, versions, extras)

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return len(self.ids) if self.mask is None else sum(self.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerContext:
    """The process that a sampler runs in."""

    model_path: str
    """HF folder: config, tokenizer and the initial weights."""
    eos_ids: tuple[int, ...]
    """Every token id that ends a response."""
    max_length: int
    """Longest prompt + response, tokens."""
    seed: int
    device: str = "cpu"
    dtype: str = "float32"
    """Compute dtype of the trainer."""
    head_dtype: str | None = None
    """Dtype of the trainer's vocabulary head, logits and log-probs; None: ``dtype``."""
    dp_rank: int = 0
    dp_degree: int = 1
    num_rows: int | None = None
    """Completions requested at a time, on all ranks together; None: unknown."""
    engine: Any = None
    """The live titanrl.engine.Engine; the `torch` sampler decodes on its modules."""
    tokenizer: Any = None
    """The model's Hugging Face tokenizer."""


class Sampler(Protocol):
    """A live sampler. Inherit from this class and write ``sample``; everything else has a default.

    The defaults suit a sampler without weights of its own: one engine per rank, no memory to free. A sampler
    with a method ``stream``, which returns a ``TokenStream``, serves token by token; others serve whole
    responses.
    """

    version: int = 0
    """Version of the policy's weights, counted in training steps."""
    weight_dtype: torch.dtype | None = None
    """Precision to which ``load`` rounds the weights, so that they may be sent in it; None: no rounding."""
    ranks_per_engine: int = 1
    """Consecutive ranks that share one engine and sample the same requests together."""

    def sample(
        self,
        requests: Sequence[RolloutRequest],
        *,
        step: int,
        seed: int,
        temperature: float | None = None,
        greedy: bool = False,
        max_tokens: int | None = None,
    ) -> list[Completion]:
        """Return one completion per request, in order.

        Args:
            requests: the prompts; may be empty.
            step: the training step; part of the random seed.
            seed: the run's seed.
            temperature: divides the logits, > 0; None: the settings' temperature.
            greedy: take the most probable token; log-probs are then at temperature 1.
            max_tokens: longest completion; None: the settings' ``max_response_tokens``.
        """
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        """Take over the policy's weights. The default records the version and reads no weights.

        Args:
            weights: (HF name, tensor), produced on demand by a collective.
            version: the policy version of these weights.
        """
        del weights
        self.version = version

    def sleep(self) -> None:
        """Free memory for the trainer's update; the default does nothing."""
        return

    def wake(self) -> None:
        """Take the memory back before the next ``load`` or ``sample``; the default does nothing."""
        return

    def close(self) -> None:
        """Release all resources; the default does nothing."""
        return


class SamplerSettings(Protocol):
    """A registered sampler: its fields are its TOML table, ``start`` creates the live sampler.

    A class may have ``problems(folder, world_size)``, which yields (field, message) for what it cannot sample
    from, and ``temperature_at(step)``, the temperature of a training step where it is not constant.
    """

    temperature: float
    max_response_tokens: int

    def start(self, context: SamplerContext) -> Sampler: ...


def temperature_at(settings: SamplerSettings, step: int) -> float:
    """Return the temperature at which the rollouts of a training step are sampled and scored.

    Args:
        settings: the [sampler] table.
        step: number of the training step, from 0.

    Raises:
        ValueError: the settings state a temperature that is not positive and finite.
    """
    schedule = getattr(settings, "temperature_at", None)
    temperature = float(settings.temperature if schedule is None else schedule(step))
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"[sampler] temperature must be in (0, inf), got {temperature} at step {step}; "
            "correct its temperature_at."
        )
    return temperature
