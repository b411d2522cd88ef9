"""Scripted sampler: responses from a table, for tests and dry runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.components.samplers.rules import check_requests
from titanrl.protocols import Completion, FinishReason, Sampler
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest, SamplerContext


@register("sampler", "scripted")
@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """Sampler that returns scripted responses, tokenized and followed by the end token; it runs no model.

    A response longer than ``max_response_tokens`` is truncated, with finish reason length. Weight updates
    only set the policy version; the weights are not read.
    """

    temperature: Annotated[float, Range("(0, inf)")] = 1.0
    """Temperature at which the trainer computes log-probs of the responses."""
    max_response_tokens: Annotated[int, Range("[1, inf)")] = 64
    """Largest length of a response, tokens, end token included."""
    answers: tuple[str, ...] = ("{answer}",)
    """Responses; sample i of a group gets number i modulo their number. {answer} and {prompt} are replaced
    by the reference answer and the prompt."""
    by_prompt: dict[str, str] = field(default_factory=dict)
    """Prompt text -> its response, which takes precedence over ``answers``; the same placeholders."""
    logprob: Annotated[float, Range("[-inf, 0]")] = 0.0
    """Log-prob to report for every token, nats."""
    requires: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not self.answers:
            raise ValueError("answers must have at least one response, got none.")

    def start(self, context: SamplerContext) -> ScriptedSampler:
        return ScriptedSampler(self, context)


class ScriptedSampler(Sampler):
    """Live sampler of `scripted`; its only state is the policy version."""

    def __init__(self, settings: Scripted, context: SamplerContext) -> None:
        if context.tokenizer is None:
            raise ValueError("sampler 'scripted' needs the model's tokenizer, got none.")
        self._settings = settings
        self._context = context

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
        """Returns one response per request; step, seed, temperature and greedy have no effect."""
        del step, seed, temperature, greedy
        limit = self._settings.max_response_tokens if max_tokens is None else max_tokens
        check_requests(requests, self._context, limit)
        return [self._complete(request, limit) for request in requests]

    def _complete(self, request: RolloutRequest, max_tokens: int) -> Completion:
        """Returns the scripted response to one request, truncated to ``max_tokens``."""
        settings = self._settings
        default = settings.answers[request.sample_index % len(settings.answers)]
        text = settings.by_prompt.get(request.text, default)
        text = text.replace("{answer}", request.answer).replace("{prompt}", request.text)
        ids = [*self._context.tokenizer.encode(text, add_special_tokens=False), self._context.eos_ids[0]]
        # A model stops at its first end token, even if the text spells it out.
        ends = (index for index, token in enumerate(ids) if token in self._context.eos_ids)
        ids = ids[: next(ends) + 1]
        reason = FinishReason.LENGTH if len(ids) > max_tokens else FinishReason.STOP
        ids = ids[:max_tokens]
        return Completion(ids, [settings.logprob] * len(ids), reason)
