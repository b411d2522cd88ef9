"""Contracts of serving: responses sampled token by token, with requests that come and go at any time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from titanrl.protocols.rollout import RolloutRequest

__all__ = ["StreamEvent", "StreamRequest", "TokenStream"]


class StreamRequest(NamedTuple):
    """One response to be sampled, with parameters of its own."""

    key: int
    """Identity of the response among those of the stream."""
    rollout: RolloutRequest
    seed: int
    """Seed of this response alone, in [0, 2^63)."""
    temperature: float | None
    """Divisor of the logits, > 0; None: take the most probable token."""
    max_tokens: int
    """Largest length of the response, end token included."""
    num_top: int = 0
    """Number of most probable tokens to report for each position."""


class StreamEvent(NamedTuple):
    """One token of a response, or the error that ends it."""

    key: int
    token: int = 0
    logprob: float = 0.0
    """Under the distribution that was sampled from; greedy: at temperature 1."""
    top: Sequence[tuple[int, float]] = ()
    """The most probable tokens with their log-probs, the best first."""
    finish_reason: int | None = None
    """A ``FinishReason`` at the last token; None before."""
    error: Exception | None = None
    """The response ends with this error, and the event has no token."""


class TokenStream(Protocol):
    """A sampler's token by token interface, ``sampler.stream()``; all methods run in one thread.

    A response is the same whatever other responses are sampled beside it, up to rounding.
    """

    capacity: int
    """Number of responses that are sampled at the same time."""

    def add(self, request: StreamRequest) -> None:
        """Take a request in.

        Raises:
            ValueError: the request is invalid; nothing has changed then.
        """
        ...

    def abort(self, keys: Iterable[int]) -> None:
        """Drop responses; keys that are not in the stream are ignored."""
        ...

    def step(self) -> list[StreamEvent]:
        """Sample the next token of the responses, and return the new tokens."""
        ...

    def close(self) -> None:
        """Drop everything and release the model."""
        ...
