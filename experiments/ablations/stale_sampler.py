"""A sampler with stale weights, which simulates asynchronous generation."""

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
    """The sampler ``torch`` with the weights of ``delay`` steps ago; validations use the current weights."""

    delay: Annotated[int, Range("[0, inf)")]
    """Age of the weights in steps, >= 0; the first steps use the initial weights."""
    temperature: float = 1.0
    """Divides the logits, > 0."""
    max_response_tokens: int = 64
    """Maximum number of tokens of a response, including the end token, >= 1."""
    max_rows: int = 128
    """Rows decoded in parallel, >= 1."""

    def start(self, context: SamplerContext) -> StaleSampler:
        keys = ("temperature", "max_response_tokens", "max_rows")
        inner = build("sampler", {"name": "torch", **{key: getattr(self, key) for key in keys}})
        return StaleSampler(inner.start(context), context.engine, self.delay)


class StaleSampler(Sampler):
    """The live sampler, with the last ``delay + 1`` versions of the weights."""

    def __init__(self, inner: Any, engine: Any, delay: int) -> None:
        self._inner, self._engine = inner, engine
        self._versions: deque[list[torch.Tensor]] = deque(maxlen=delay + 1)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        """Stores a copy of the trainer's current weights."""
        del weights
        self._versions.append([parameter.detach().clone() for parameter in self._parameters()])
        self.version = max(version + 1 - len(self._versions), 0)

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
        """Returns one completion per row; validations set ``temperature`` or ``greedy``."""
        if temperature is not None or greedy:
            return self._inner.sample(
                rows, step=step, seed=seed, temperature=temperature, greedy=greedy, max_tokens=max_tokens
            )
        with self._loaded(self._versions[0]):
            return self._inner.sample(rows, step=step, seed=seed, max_tokens=max_tokens)

    @contextmanager
    def _loaded(self, values: list[torch.Tensor]) -> Iterator[None]:
        """Replaces the weights in the trainer's modules within the block."""
        parameters = self._parameters()
        current = [parameter.detach().clone() for parameter in parameters]
        try:
            self._copy(parameters, values)
            yield
        finally:
            self._copy(parameters, current)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for module in self._engine.modules for parameter in module.parameters()]

    def _copy(self, parameters: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
