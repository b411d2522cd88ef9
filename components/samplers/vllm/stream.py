"""Responses token by token from vLLM's engine, which batches them continuously."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from titanrl.components.samplers.rules import check_requests
from titanrl.components.samplers.vllm.process import preserved_random_state
from titanrl.protocols import FinishReason, StreamEvent, StreamRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from titanrl.protocols import SamplerContext

__all__ = ["VLLMStream"]

FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
"""vLLM's finish reasons; any other is an abort."""


class VLLMStream:
    """The stream of the sampler `vllm`.

    Args:
        engine: vLLM's engine.
        parameters: request -> its SamplingParams, with tokens reported as they come.
        context: the process that the sampler runs in.
        capacity: number of responses that vLLM decodes at the same time.
    """

    def __init__(
        self,
        engine: Any,
        parameters: Callable[[StreamRequest], Any],
        context: SamplerContext,
        capacity: int,
    ) -> None:
        self._engine, self._parameters, self._context = engine, parameters, context
        self.capacity = capacity
        self._active: dict[str, StreamRequest] = {}

    def add(self, request: StreamRequest) -> None:
        check_requests([request.rollout], self._context, request.max_tokens)
        prompt = {"prompt_token_ids": list(request.rollout.prompt_ids)}
        self._engine.add_request(str(request.key), prompt, self._parameters(request))
        self._active[str(request.key)] = request

    def abort(self, keys: Iterable[int]) -> None:
        names = [name for name in map(str, keys) if self._active.pop(name, None) is not None]
        if names:
            self._engine.abort_request(names)

    def step(self) -> list[StreamEvent]:
        with preserved_random_state():
            outputs = self._engine.step()
        events: list[StreamEvent] = []
        for output in outputs:
            request = self._active.get(output.request_id)
            if request is not None:
                events += _events(request, output.outputs[0])
                if output.finished:
                    del self._active[output.request_id]
        return events

    def close(self) -> None:
        self.abort([request.key for request in self._active.values()])


def _events(request: StreamRequest, completion: Any) -> list[StreamEvent]:
    """Returns the new tokens of a response."""
    events = []
    for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        best = sorted(entry.items(), key=lambda item: -item[1].logprob)
        top: Sequence[tuple[int, float]] = [(other, each.logprob) for other, each in best[: request.num_top]]
        events.append(StreamEvent(request.key, token, entry[token].logprob, top))
    if completion.finish_reason is not None:
        reason = FINISH_REASONS.get(completion.finish_reason, FinishReason.ABORT)
        if not events:
            error = RuntimeError("the engine ended the response without a token.")
            return [StreamEvent(request.key, error=error)]
        events[-1] = events[-1]._replace(finish_reason=reason)
    return events
