"""Key-value-cached decoding on the trainer's own modules: no second copy of the weights, no mismatch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from titanrl.components.samplers.rules import check_rows, check_settings, top_k_of, top_p_of
from titanrl.components.samplers.torch.cache import Cache
from titanrl.errors import ConfigError, check_range
from titanrl.ops.sampling import apply_top_k_top_p, sample_from_logits
from titanrl.ops.seeds import sample_seed, uniforms
from titanrl.protocols import Completion
from titanrl.registry import register

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest, SamplerContext


SPARSE = 0.7
"""Share of the batch still alive at which finished rows are dropped, which copies the cache."""


@register("sampler", "torch")
@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """Samples with the trainer's modules and weights, rows side by side, each prompt computed once.

    A token is the first whose cumulative probability exceeds a number in [0, 1) that is a hash of the seed,
    step, group, sample and position. So an answer depends on nothing else, up to the rounding of matrix
    products of other sizes. The weights are gathered once a call, and no collective follows: where layers are
    cut by tensor, pipeline or expert parallelism into a whole copy on each rank, for as long as it decodes.
    """

    temperature: float = 1.0
    """Divides the logits, > 0."""
    max_response_tokens: int = 64
    """Longest answer, end token included, >= 1."""
    top_k: int | None = None
    """Sample among the k likeliest tokens; 0, -1 or absent: all. Evaluation only: training refuses it."""
    top_p: float | None = None
    """Sample within the smallest set of this mass, in (0, 1]; 1 or absent: all. Evaluation only."""
    stop_token_ids: tuple[int, ...] = ()
    """Further token ids that end an answer, beside the model's own; they belong to the answer."""
    max_rows: int = 128
    """Rows decoded side by side, >= 1; more need more memory."""
    requires: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_settings(self)
        check_range(self, "max_rows", "[1, inf)")

    def start(self, host: SamplerContext) -> TorchSampler:
        """Raises:
        ConfigError: there is no trainer.
        """
        return TorchSampler(self, host)


class TorchSampler:
    """The live sampler. ``sample`` is a collective: call it even without rows."""

    ranks_per_engine = 1

    def __init__(self, settings: Torch, host: SamplerContext) -> None:
        engine = host.engine
        if engine is None:
            raise ConfigError(
                "sampler 'torch' decodes on the trainer's modules and needs its engine, got none."
            )
        self._settings = settings
        self._host = host
        self._engine = engine
        self._stops = frozenset(host.eos_ids) | frozenset(settings.stop_token_ids)
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
        """Returns one answer for each row, in order.

        Args:
            temperature: omitted: the settings'.
            greedy: take the likeliest token; log-probs are at temperature 1.
            max_tokens: longest answer; omitted: the settings' max_response_tokens.

        Raises:
            ValueError: a prompt that is empty or too long, before any is answered.
        """
        settings = self._settings
        longest = settings.max_response_tokens if max_tokens is None else max_tokens
        check_rows(rows, self._host, longest)
        if temperature is None:
            temperature = settings.temperature
        if temperature <= 0 and not greedy:
            raise ValueError(f"temperature must be > 0, got {temperature}; ask for greedy answers.")
        seeds = torch.tensor(
            [sample_seed(seed, step, row.group, row.sample) for row in rows], dtype=torch.int64
        )
        samples: list[Completion] = []
        with self._engine.inference() as parts:
            for first in range(0, len(rows), settings.max_rows):
                chunk = slice(first, first + settings.max_rows)
                samples += self._decode(
                    parts[0], rows[chunk], seeds[chunk], None if greedy else temperature, longest
                )
        return samples

    def _decode(
        self,
        model: Any,
        rows: Sequence[RolloutRequest],
        seeds: torch.Tensor,
        temperature: float | None,
        longest: int,
    ) -> list[Completion]:
        device = self._engine.device
        layers = [_unwrapped(layer) for layer in model.layers.values()]
        numbers: dict[tuple[int, ...], int] = {}
        prompt_of = [numbers.setdefault(tuple(row.prompt_ids), len(numbers)) for row in rows]
        lengths = torch.tensor([len(prompt) for prompt in numbers], device=device)
        prompts = torch.zeros(len(numbers), int(lengths.max()), dtype=torch.int64, device=device)
        for index, prompt in enumerate(numbers):
            prompts[index, : len(prompt)] = torch.tensor(prompt, device=device)
        answers: list[tuple[list[int], list[float]]] = [([], []) for _ in rows]
        seeds = seeds.to(device)
        active = list(range(len(rows)))  # the row that decodes at each place of the batch
        is_done = [False] * len(rows)
        cache = Cache(len(layers))
        with cache.installed([layer.attention.inner_attention for layer in layers]):
            hidden = _hidden(model, layers, prompts, None)
            last = hidden[torch.arange(len(numbers), device=device), lengths - 1].unsqueeze(1)
            of = torch.tensor(prompt_of, device=device)
            logits = _logits(model, last)[of]
            cache.repeat(of, lengths[of])
            for position in range(longest):
                tokens, logprobs = self._pick(logits, seeds, position, temperature)
                for row, token, logprob in zip(active, tokens.tolist(), logprobs.tolist(), strict=True):
                    if is_done[row]:
                        continue
                    ids, values = answers[row]
                    ids.append(token)
                    values.append(logprob)
                    is_done[row] = token in self._stops
                places = [place for place, row in enumerate(active) if not is_done[row]]
                if not places or position + 1 == longest:
                    break
                if len(places) <= SPARSE * len(active):
                    kept = torch.tensor(places, device=device)
                    cache.keep(kept)
                    tokens, seeds = tokens[kept], seeds[kept]
                    active = [active[place] for place in places]
                positions = cache.advance()
                logits = _logits(model, _hidden(model, layers, tokens.unsqueeze(1), positions))
                cache.commit()
        return [
            Completion(ids, values, 0 if done else 1)
            for (ids, values), done in zip(answers, is_done, strict=True)
        ]

    def _pick(
        self, logits: torch.Tensor, seeds: torch.Tensor, position: int, temperature: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns tokens [R] int64 and their log-probs [R] float32 under what they were drawn from."""
        if temperature is None:
            tokens = logits.argmax(-1)
            return tokens, logits.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
        top_k, top_p = top_k_of(self._settings), top_p_of(self._settings)
        return sample_from_logits(
            apply_top_k_top_p(logits / temperature, top_k=top_k, top_p=top_p), uniforms(seeds, position)
        )

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        """Takes the version; the weights are the trainer's own, so none are asked for, on no rank."""
        del weights
        self.version = version

    def sleep(self) -> None:
        """Nothing to free: caches live within a call."""

    def wake(self) -> None:
        """Nothing was freed."""

    def close(self) -> None:
        """Nothing to end."""


def _unwrapped(layer: Any) -> Any:
    """Returns the block inside an activation-checkpoint wrapper."""
    return getattr(layer, "_checkpoint_wrapped_module", layer)


# Blocks are called by their forward: FSDP's hooks would gather weights that are gathered already.
def _hidden(
    model: Any, layers: list[Any], tokens: torch.Tensor, positions: torch.Tensor | None
) -> torch.Tensor:
    """Returns [B, L, D], the last layer's output."""
    hidden: torch.Tensor = model.tok_embeddings.forward(tokens)
    for layer in layers:
        hidden = layer.forward(hidden, None, positions)
    return hidden


def _logits(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Returns [B, V] float32 for hidden states [B, 1, D]."""
    logits: torch.Tensor = model.lm_head.forward(model.norm.forward(hidden))
    return logits.squeeze(1).float()
