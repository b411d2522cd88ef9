"""Cached decoding on the trainer's own modules: no second copy of the weights, no trainer/sampler
mismatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch

from titanrl.components.samplers.rules import check_requests, top_k_of, top_p_of
from titanrl.components.samplers.torch.cache import Cache
from titanrl.components.samplers.torch.forward import hidden_states, logits_of, unwrapped
from titanrl.components.samplers.torch.stream import TorchStream
from titanrl.errors import ConfigError
from titanrl.ops.sampling import apply_top_k_top_p, sample_from_logits
from titanrl.ops.seeds import sample_seed, uniforms
from titanrl.protocols import Completion, FinishReason, Sampler
from titanrl.registry import Range, register
from titanrl.runtime.stop import abandonable

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest, SamplerContext


SPARSE = 0.7
"""Fraction of unfinished rows in the batch below which finished rows are dropped, which copies the cache."""


@register("sampler", "torch")
@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """Sampler that decodes with the trainer's modules and weights, in batches; each prompt is computed
    once.

    A token is the first one whose cumulative probability exceeds a number in [0, 1) that is a hash of seed,
    step, group, sample and position. A response therefore depends on nothing else, up to rounding of matrix
    products of different sizes. The weights are gathered once per call, and no collective follows. With
    tensor, pipeline or expert parallelism, each rank holds a full copy of the weights while it decodes.
    """

    temperature: Annotated[float, Range("(0, inf)")] = 1.0
    """Divisor of the logits."""
    max_response_tokens: Annotated[int, Range("[1, inf)")] = 64
    """Largest length of a response, tokens, end token included."""
    top_k: Annotated[int | None, Range("[-1, inf)")] = None
    """Sample from the k most probable tokens; 0, -1 or omitted: all. Evaluation only: training rejects it."""
    top_p: Annotated[float | None, Range("(0, 1]")] = None
    """Sample from the smallest set of tokens with this probability; 1 or omitted: all. Evaluation only."""
    stop_token_ids: Annotated[tuple[int, ...], Range("[0, inf)")] = ()
    """Token ids that end a response, in addition to the model's own; they are part of the response."""
    max_rows: Annotated[int, Range("[1, inf)")] = 128
    """Number of rows to decode at the same time; more rows need more memory."""
    requires: ClassVar[tuple[str, ...]] = ()

    def start(self, context: SamplerContext) -> TorchSampler:
        """Creates the live sampler.

        Raises:
            ConfigError: there is no trainer.
        """
        return TorchSampler(self, context)


class TorchSampler(Sampler):
    """Live sampler of `torch`. ``sample`` is a collective: call it on every rank, even without requests."""

    def __init__(self, settings: Torch, context: SamplerContext) -> None:
        engine = context.engine
        if engine is None:
            raise ConfigError(
                "sampler 'torch' decodes on the trainer's modules and needs its engine, got none."
            )
        self._settings = settings
        self._context = context
        self._engine = engine
        self._stops = frozenset(context.eos_ids) | frozenset(settings.stop_token_ids)

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
        """Returns one response per request, in order.

        Args:
            requests: the prompts; may be empty.
            step: training step, part of the random seed.
            seed: seed of the run.
            temperature: divisor of the logits; None: the settings'.
            greedy: take the most probable token; log-probs are then at temperature 1.
            max_tokens: largest length of a response; None: the settings' max_response_tokens.

        Raises:
            ValueError: a prompt is empty or too long; nothing has been sampled then.
        """
        settings = self._settings
        limit = settings.max_response_tokens if max_tokens is None else max_tokens
        check_requests(requests, self._context, limit)
        if temperature is None:
            temperature = settings.temperature
        if temperature <= 0 and not greedy:
            raise ValueError(
                f"temperature must be > 0, got {temperature}; use greedy = true for temperature 0."
            )
        seeds = torch.tensor(
            [sample_seed(seed, step, request.prompt_index, request.sample_index) for request in requests],
            dtype=torch.int64,
        )
        completions: list[Completion] = []
        with self._engine.inference() as parts, abandonable():
            for first in range(0, len(requests), settings.max_rows):
                chunk = slice(first, first + settings.max_rows)
                completions += self._decode(
                    parts[0], requests[chunk], seeds[chunk], None if greedy else temperature, limit
                )
        return completions

    def stream(self) -> TorchStream:
        """Returns a stream of responses in this process; the weights are gathered until it is closed."""
        return TorchStream(self._engine, self._settings, self._stops, self._context)

    def _decode(
        self,
        model: Any,
        requests: Sequence[RolloutRequest],
        seeds: torch.Tensor,
        temperature: float | None,
        max_tokens: int,
    ) -> list[Completion]:
        """Returns the responses to a chunk of requests; a temperature of None is greedy decoding."""
        device = self._engine.device
        layers = [unwrapped(layer) for layer in model.layers.values()]
        unique: dict[tuple[int, ...], int] = {}
        prompt_of = [unique.setdefault(tuple(request.prompt_ids), len(unique)) for request in requests]
        lengths = torch.tensor([len(prompt) for prompt in unique], device=device)
        prompts = torch.zeros(len(unique), int(lengths.max()), dtype=torch.int64, device=device)
        for index, prompt in enumerate(unique):
            prompts[index, : len(prompt)] = torch.tensor(prompt, device=device)
        responses: list[tuple[list[int], list[float]]] = [([], []) for _ in requests]
        seeds = seeds.to(device)
        active = list(range(len(requests)))  # index of the request in each row of the batch
        is_done = [False] * len(requests)
        cache = Cache(len(layers))
        with cache.installed([layer.attention.inner_attention for layer in layers]):
            hidden = hidden_states(model, layers, prompts, None)
            last = hidden[torch.arange(len(unique), device=device), lengths - 1].unsqueeze(1)
            prompt_index = torch.tensor(prompt_of, device=device)
            logits = logits_of(model, last)[prompt_index]
            cache.repeat(prompt_index, lengths[prompt_index])
            for position in range(max_tokens):
                tokens, logprobs = self._pick(logits, seeds, position, temperature)
                for index, token, logprob in zip(active, tokens.tolist(), logprobs.tolist(), strict=True):
                    if is_done[index]:
                        continue
                    ids, values = responses[index]
                    ids.append(token)
                    values.append(logprob)
                    is_done[index] = token in self._stops
                unfinished = [row for row, index in enumerate(active) if not is_done[index]]
                if not unfinished or position + 1 == max_tokens:
                    break
                if len(unfinished) <= SPARSE * len(active):
                    rows = torch.tensor(unfinished, device=device)
                    cache.keep(rows)
                    tokens, seeds = tokens[rows], seeds[rows]
                    active = [active[row] for row in unfinished]
                positions = cache.advance()
                logits = logits_of(model, hidden_states(model, layers, tokens.unsqueeze(1), positions))
                cache.commit()
        return [
            Completion(ids, values, FinishReason.STOP if done else FinishReason.LENGTH)
            for (ids, values), done in zip(responses, is_done, strict=True)
        ]

    def _pick(
        self, logits: torch.Tensor, seeds: torch.Tensor, position: int, temperature: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns tokens [R] int64 and their log-probs [R] float32 under the sampled distribution."""
        if temperature is None:
            tokens = logits.argmax(-1)
            return tokens, logits.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
        top_k, top_p = top_k_of(self._settings), top_p_of(self._settings)
        return sample_from_logits(
            apply_top_k_top_p(logits / temperature, top_k=top_k, top_p=top_p), uniforms(seeds, position)
        )
