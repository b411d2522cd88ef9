"""Responses token by token on the trainer's own modules: rows join and leave the batch at every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from titanrl.components.samplers.rules import check_requests, top_k_of, top_p_of
from titanrl.components.samplers.torch.cache import Cache, SlotCache
from titanrl.components.samplers.torch.forward import hidden_states, logits_of, unwrapped
from titanrl.ops.sampling import apply_top_k_top_p, sample_from_logits
from titanrl.ops.seeds import uniforms
from titanrl.protocols import FinishReason, StreamEvent, StreamRequest

if TYPE_CHECKING:
    from titanrl.protocols import SamplerContext

__all__ = ["TorchStream"]

PROMPT_TOKENS = 4096
"""Prompt tokens per step, padding included: a limit on how long new prompts keep the other rows waiting."""


class TorchStream:
    """The stream of the sampler `torch`; a token depends on seed and position alone, as in ``sample``.

    Args:
        engine: the trainer's engine on this rank.
        settings: settings of the sampler.
        stops: token ids that end a response.
        context: the process that the sampler runs in.
    """

    def __init__(self, engine: Any, settings: Any, stops: frozenset[int], context: SamplerContext) -> None:
        self._engine, self._settings, self._stops, self._context = engine, settings, stops, context
        self.capacity: int = settings.max_rows
        self._stack = ExitStack()
        self._model: Any = self._stack.enter_context(engine.inference())[0]
        self._layers = [unwrapped(layer) for layer in self._model.layers.values()]
        self._attentions = [layer.attention.inner_attention for layer in self._layers]
        self._cache = SlotCache(len(self._layers))
        self._waiting: deque[StreamRequest] = deque()
        self._rows: list[_Row] = []

    def add(self, request: StreamRequest) -> None:
        check_requests([request.rollout], self._context, request.max_tokens)
        self._waiting.append(request)

    def abort(self, keys: Iterable[int]) -> None:
        dropped = frozenset(keys)
        self._waiting = deque(request for request in self._waiting if request.key not in dropped)
        for index in reversed(range(len(self._rows))):
            if self._rows[index].request.key in dropped:
                self._remove(index)

    def step(self) -> list[StreamEvent]:
        events = self._decode() if self._rows else []
        if self._waiting and len(self._rows) < self.capacity:
            events += self._start(self._admitted())
        return events

    def close(self) -> None:
        self._waiting.clear()
        self._rows.clear()
        self._cache = SlotCache(len(self._layers))
        self._stack.close()

    def _admitted(self) -> list[StreamRequest]:
        """Takes requests from the queue: as many as rows are free and their prompts fit in one pass."""
        taken: list[StreamRequest] = []
        prompts: set[tuple[int, ...]] = set()
        longest = 0
        while self._waiting and len(self._rows) + len(taken) < self.capacity:
            prompt = tuple(self._waiting[0].rollout.prompt_ids)
            width = max(longest, len(prompt))
            if taken and len(prompts | {prompt}) * width > PROMPT_TOKENS:
                break
            longest = width
            prompts.add(prompt)
            taken.append(self._waiting.popleft())
        return taken

    def _start(self, requests: Sequence[StreamRequest]) -> list[StreamEvent]:
        """Computes new prompts, each once, and samples the first token of their responses."""
        device = self._engine.device
        unique: dict[tuple[int, ...], int] = {}
        prompt_of = [unique.setdefault(tuple(each.rollout.prompt_ids), len(unique)) for each in requests]
        lengths = torch.tensor([len(prompt) for prompt in unique], device=device)
        prompts = torch.zeros(len(unique), int(lengths.max()), dtype=torch.int64, device=device)
        for index, prompt in enumerate(unique):
            prompts[index, : len(prompt)] = torch.tensor(prompt, device=device)
        cache = Cache(len(self._layers))
        with cache.installed(self._attentions):
            hidden = hidden_states(self._model, self._layers, prompts, None)
        last = hidden[torch.arange(len(unique), device=device), lengths - 1].unsqueeze(1)
        rows = torch.tensor(prompt_of, device=device)
        logits = logits_of(self._model, last)[rows]
        self._cache.append(cache, rows, lengths[rows])
        first = len(self._rows)
        self._rows += [_Row(request) for request in requests]
        return self._pick(logits, first)

    def _decode(self) -> list[StreamEvent]:
        device = self._engine.device
        tokens = torch.tensor([[row.token] for row in self._rows], device=device)
        with self._cache.installed(self._attentions):
            positions = self._cache.advance()
            logits = logits_of(self._model, hidden_states(self._model, self._layers, tokens, positions))
        self._cache.commit()
        return self._pick(logits, 0)

    def _pick(self, logits: torch.Tensor, first: int) -> list[StreamEvent]:
        """Samples a token for the rows from ``first`` on, [R, V], and drops those that end."""
        rows, device = self._rows[first:], logits.device
        greedy = torch.tensor([row.request.temperature is None for row in rows], device=device)
        temperatures = torch.tensor([row.request.temperature or 1.0 for row in rows], device=device)
        seeds = torch.tensor([row.request.seed for row in rows], dtype=torch.int64, device=device)
        counts = torch.tensor([row.count for row in rows], dtype=torch.int64, device=device)
        scaled = apply_top_k_top_p(
            logits / temperatures.unsqueeze(1), top_k=top_k_of(self._settings), top_p=top_p_of(self._settings)
        )
        scaled = torch.where(greedy.unsqueeze(1), logits, scaled)
        sampled, logprobs = sample_from_logits(scaled, uniforms(seeds, counts))
        tokens = torch.where(greedy, logits.argmax(-1), sampled)
        if bool(greedy.any()):
            at_token = logits.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
            logprobs = torch.where(greedy, at_token, logprobs)
        num_top = max(row.request.num_top for row in rows)
        tops: list[Sequence[tuple[int, float]]] = [()] * len(rows)
        if num_top:
            values, ids = scaled.log_softmax(-1).topk(min(num_top, scaled.shape[-1]))
            tops = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
        events = []
        for row, token, logprob, top in zip(rows, tokens.tolist(), logprobs.tolist(), tops, strict=True):
            row.token, row.count = token, row.count + 1
            reason = None
            if token in self._stops:
                reason = FinishReason.STOP
            elif row.count == row.request.max_tokens:
                reason = FinishReason.LENGTH
            events.append(StreamEvent(row.request.key, token, logprob, top[: row.request.num_top], reason))
        for index in reversed(range(len(rows))):
            if events[index].finish_reason is not None:
                self._remove(first + index)
        return events

    def _remove(self, index: int) -> None:
        self._cache.remove(index)
        self._rows[index] = self._rows[-1]
        self._rows.pop()


class _Row:
    """A response that is being sampled."""

    __slots__ = ("count", "request", "token")

    def __init__(self, request: StreamRequest) -> None:
        self.request = request
        self.token = 0
        """Its newest token."""
        self.count = 0
        """Tokens sampled so far."""
