"""A sampler that answers with the weights of some steps ago, as one that runs beside the trainer does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch

from titanrl import build
from titanrl.protocols import Sampler
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from titanrl.protocols import Completion, RolloutRequest, SamplerContext

__all__ = ["Stale", "StaleSampler"]


@register("sampler", "stale")
@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """Samples as ``torch`` does, with the weights of ``delay`` steps ago; held-out prompts with today's."""

    delay: Annotated[int, Range("[0, inf)")]
    """Steps by which the weights are behind, >= 0; at first there are none older than those of step 0."""
    temperature: float = 1.0
    """Divides the logits, > 0."""
    max_response_tokens: int = 64
    """Longest answer, end token included, >= 1."""
    max_rows: int = 128
    """Rows decoded side by side, >= 1."""

    def start(self, host: SamplerContext) -> StaleSampler:
        keys = ("temperature", "max_response_tokens", "max_rows")
        inner = build("sampler", {"name": "torch", **{key: getattr(self, key) for key in keys}})
        return StaleSampler(inner.start(host), host.engine, self.delay)


class StaleSampler(Sampler):
    """The live sampler; it holds ``delay + 1`` copies of the weights."""

    def __init__(self, inner: Any, engine: Any, delay: int) -> None:
        self._inner, self._engine = inner, engine
        self._kept: deque[list[torch.Tensor]] = deque(maxlen=delay + 1)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        """Keeps a copy of the trainer's weights as they are now."""
        del weights
        self._kept.append([parameter.detach().clone() for parameter in self._parameters()])
        self.version = max(version + 1 - len(self._kept), 0)

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
        """Returns one answer for each row; a temperature or greedy means that held-out prompts are asked."""
        if temperature is not None or greedy:
            return self._inner.sample(
                rows, step=step, seed=seed, temperature=temperature, greedy=greedy, max_tokens=max_tokens
            )
        with self._lent(self._kept[0]):
            return self._inner.sample(rows, step=step, seed=seed, max_tokens=max_tokens)

    @contextmanager
    def _lent(self, old: list[torch.Tensor]) -> Iterator[None]:
        """Puts other weights into the trainer's modules within the block."""
        parameters = self._parameters()
        now = [parameter.detach().clone() for parameter in parameters]
        try:
            self._fill(parameters, old)
            yield
        finally:
            self._fill(parameters, now)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for module in self._engine.modules for parameter in module.parameters()]

    def _fill(self, parameters: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
