"""Replies of the OpenAI-compatible endpoints: whole, as server-sent events, and errors."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from titanrl.protocols import FinishReason
from titanrl.serve.best_of_n import GenerationRequest, GenerationResult, RankedResponse, TokenLogprob
from titanrl.serve.openai import ChatRequest, CompletionRequest, ServerInfo
from titanrl.serve.service import Delta

__all__ = ["DONE", "Reply", "error_body", "event", "model_reply"]

DONE = b"data: [DONE]\n\n"
"""The end of a stream."""
CODES = {
    HTTPStatus.UNAUTHORIZED: "invalid_api_key",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded",
}
"""Values of ``code`` that are not the status in words."""


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return the body of a reply with an HTTP error status."""
    code = HTTPStatus(status)
    kind = "server_error" if code >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    name = CODES.get(code, code.phrase.lower().replace(" ", "_"))
    return {"error": {"message": message, "type": kind, "param": None, "code": name}}


def event(body: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, allow_nan=False)}\n\n".encode()


def model_reply(info: ServerInfo, started: int) -> dict[str, Any]:
    """Return the body of ``/v1/models/{id}``.

    Args:
        info: name of the model.
        started: start of the server, seconds since 1970.
    """
    return {"id": info.name, "object": "model", "created": started, "owned_by": "titanrl"}


class Reply:
    """The reply to one request.

    Args:
        request: the request.
        info: options of the server.
        requests: what is generated for it, one per prompt.
    """

    def __init__(
        self,
        request: CompletionRequest | ChatRequest,
        info: ServerInfo,
        requests: Sequence[GenerationRequest],
    ) -> None:
        self._request, self._info = request, info
        self._is_chat = isinstance(request, ChatRequest)
        self._is_ranked = requests[0].is_ranked
        self._started: set[int] = set()
        """Choices that the stream has begun."""
        self._offsets: dict[int, int] = {}
        self._head = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": info.name,
        }

    def whole(self, results: Sequence[GenerationResult]) -> dict[str, Any]:
        """Return the body: the n best responses to each prompt with their scores, the best first."""
        best = [each for result in results for each in result.ranked[: self._request.n]]
        return {
            **self._head,
            "object": "chat.completion" if self._is_chat else "text_completion",
            "choices": [self._choice(index, each) for index, each in enumerate(best)],
            "usage": _usage(results),
            **self._ranking(results),
        }

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return the events of a piece of a response; none for one that is not among the n best."""
        if delta.sample >= self._request.n:
            return []
        index, response = delta.prompt * self._request.n + delta.sample, delta.response
        texts: list[dict[str, Any]] = []
        if self._is_chat and index not in self._started:
            texts.append({"delta": {"role": "assistant", "content": ""}, "logprobs": None})
        self._started.add(index)
        if response.text or response.tokens:
            text: dict[str, Any] = {"text": response.text}
            if self._is_chat:
                text = {"delta": {"content": response.text}}
            texts.append({**text, "logprobs": self._logprobs(response, index)})
        choices: list[dict[str, Any]] = [{"index": index, **each, "finish_reason": None} for each in texts]
        if delta.is_last:
            end: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
            reason = FinishReason(response.finish_reason).label
            scores = self._scores(response)
            choices.append({"index": index, **end, "logprobs": None, "finish_reason": reason, **scores})
        return [self._chunk([choice]) for choice in choices]

    def last_chunk(self, results: Sequence[GenerationResult]) -> list[dict[str, Any]]:
        """Return the event with the usage, where the request asks for it, and the scores."""
        options = self._request.stream_options
        ranking = self._ranking(results) if self._is_ranked else {}
        wants_usage = options is not None and bool(options.include_usage)
        usage = {"usage": _usage(results)} if wants_usage else {}
        return [{**self._chunk([]), **usage, **ranking}] if usage or ranking else []

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": None}

    def _choice(self, index: int, response: RankedResponse) -> dict[str, Any]:
        message = {"role": "assistant", "content": response.text}
        text = {"message": message} if self._is_chat else {"text": response.text}
        return {
            "index": index,
            **text,
            "logprobs": self._logprobs(response, index),
            "finish_reason": FinishReason(response.finish_reason).label,
            **self._scores(response),
        }

    def _scores(self, response: RankedResponse) -> dict[str, Any]:
        if not self._is_ranked:
            return {}
        rewards, failures = dict(response.rewards), dict(response.failures)
        return {"score": response.score, "rewards": rewards, "failures": failures}

    def _ranking(self, results: Sequence[GenerationResult]) -> dict[str, Any]:
        if self._is_ranked:
            has_reference = self._request.answer is not None or not self._info.reference_readers
            scored_by = self._info.scored_by if has_reference else self._info.scored_without
            scores = [[each.score for each in result.ranked] for result in results]
            return {"best_of": {"scored_by": scored_by, "scores": scores}}
        if self._info.best_of is None:
            return {}
        readers = ", ".join(self._info.reference_readers)
        reason = f"the request has no answer, which the reward {readers} reads"
        return {"best_of": {"scored_by": None, "scores": [], "reason": reason}}

    def _logprobs(self, response: RankedResponse, index: int) -> dict[str, Any] | None:
        if self._request.num_top() is None:
            return None
        if self._is_chat:
            return {"content": [_chat_token(token) for token in response.tokens], "refusal": None}
        offsets = []
        offset = self._offsets.get(index, 0)
        for token in response.tokens:
            offsets.append(offset)
            offset += len(token.text)
        self._offsets[index] = offset
        tops = [dict(token.top) for token in response.tokens]
        return {
            "tokens": [token.text for token in response.tokens],
            "token_logprobs": [token.logprob for token in response.tokens],
            "top_logprobs": tops if self._request.num_top() else None,
            "text_offset": offsets,
        }


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    top = [{"token": text, "logprob": logprob, "bytes": _bytes(text)} for text, logprob in token.top]
    return {"token": token.text, "logprob": token.logprob, "bytes": _bytes(token.text), "top_logprobs": top}


def _bytes(text: str) -> list[int] | None:
    """Return the bytes of a token; None if it holds a part of a character."""
    return None if "\ufffd" in text else list(text.encode())


def _usage(results: Sequence[GenerationResult]) -> dict[str, int]:
    prompt = sum(result.num_prompt_tokens for result in results)
    completion = sum(each.num_tokens for result in results for each in result.ranked)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
