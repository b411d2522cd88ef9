"""Answers from a table, tokenized as a model would have sampled them: for tests and dry runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from titanrl.components.samplers.rules import check_rows
from titanrl.errors import check_range
from titanrl.protocols import Completion
from titanrl.registry import register

if TYPE_CHECKING:
    import torch

    from titanrl.protocols import RolloutRequest, SamplerContext


@register("sampler", "scripted")
@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """Returns written answers, each followed by the end token; no model is asked.

    An answer longer than ``max_response_tokens`` is cut and its finish_reason is length. Weights are never
    asked for, while the policy's version still counts.
    """

    temperature: float = 1.0
    """At which the trainer scores the answers, > 0."""
    max_response_tokens: int = 64
    """Longest answer, end token included, >= 1."""
    answers: tuple[str, ...] = ("{answer}",)
    """Sample i of a group gets number i modulo their count; {answer} and {prompt} stand for the row's."""
    by_prompt: dict[str, str] = field(default_factory=dict)
    """Prompt text -> its answer, before ``answers``; the same placeholders."""
    logprob: float = 0.0
    """Log-prob reported for every token, nats, <= 0."""
    requires: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_range(self, "temperature", "(0, inf)")
        check_range(self, "max_response_tokens", "[1, inf)")
        if not self.answers:
            raise ValueError("answers must hold at least one answer, got none.")
        check_range(self, "logprob", "[-inf, 0]")

    def start(self, host: SamplerContext) -> ScriptedSampler:
        return ScriptedSampler(self, host)


class ScriptedSampler:
    """The live sampler; holds nothing but the version."""

    ranks_per_engine = 1

    def __init__(self, settings: Scripted, host: SamplerContext) -> None:
        if host.tokenizer is None:
            raise ValueError("sampler 'scripted' needs the model's tokenizer, got none.")
        self._settings = settings
        self._host = host
        self.version = 0
        self.weight_dtype = None

    def sample(
        self,
        rows: Sequence[RolloutRequest],
        *,
        step: int,
        seed: int,
        temperature: float | None = None,
        greedy: bool = False,
        max_tokens: int | None = None,
    ) -> list[Completion]:
        """Returns one answer for each row; step, seed, temperature and greedy change nothing."""
        del step, seed, temperature, greedy
        longest = self._settings.max_response_tokens if max_tokens is None else max_tokens
        check_rows(rows, self._host, longest)
        return [self._answer(row, longest) for row in rows]

    def _answer(self, row: RolloutRequest, longest: int) -> Completion:
        settings = self._settings
        cycle = settings.answers[row.sample % len(settings.answers)]
        text = settings.by_prompt.get(row.text, cycle)
        text = text.replace("{answer}", row.answer).replace("{prompt}", row.text)
        ids = [*self._host.tokenizer.encode(text, add_special_tokens=False), self._host.eos_ids[0]]
        # A model stops at its first end token, also where the text writes it out.
        ends = (place for place, token in enumerate(ids) if token in self._host.eos_ids)
        ids = ids[: next(ends) + 1]
        is_cut = len(ids) > longest
        ids = ids[:longest]
        return Completion(ids, [settings.logprob] * len(ids), finish_reason=1 if is_cut else 0)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        """Takes the version; the weights are never asked for, on no rank."""
        del weights
        self.version = version

    def sleep(self) -> None:
        """Nothing to free."""

    def wake(self) -> None:
        """Nothing was freed."""

    def close(self) -> None:
        """Nothing to end."""
