"""Requests and replies of the OpenAI-compatible endpoints, reduced to what best-of-N generation supports.

Keys beyond OpenAI's: ``answer``, the reference answer for verifiers, and ``best_of`` for chats as well.
"""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from titanrl.components.sources.records.rows import parse_messages
from titanrl.errors import did_you_mean
from titanrl.protocols import FinishReason, Messages
from titanrl.serve.best_of_n import GenerationRequest, GenerationResult, RankedResponse

__all__ = ["NUM_SEEDS", "ChatRequest", "CompletionRequest", "ServerInfo", "models_reply", "reply"]

MAX_N = 1024
"""Limit of responses per prompt, and of prompts per request."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "metadata": ({},),
}
"""OpenAI's keys that are not supported -> values without effect, which are accepted."""
NUM_SEEDS = 2**32
"""Seeds of requests are in [0, NUM_SEEDS)."""


class ServerInfo(NamedTuple):
    """Name and options of a server."""

    name: str
    """Name of the model for clients."""
    best_of: int | None = None
    """Responses to sample if a request does not set best_of; None: as many as it returns."""
    scored_by: str | None = None
    """Label of the reward that ranks, or "weighted sum"; None: there are no rewards."""
    reference_readers: tuple[str, ...] = ()
    """Labels of the rewards that read the reference answer."""
    top_p: float | None = None
    """The sampler's top_p; None: it has none."""


class _Request(BaseModel, ABC):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    user: str | None = None
    n: int = Field(1, ge=1, le=MAX_N)
    best_of: int | None = Field(None, ge=1, le=MAX_N)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=NUM_SEEDS)
    stop: str | list[str] | None = None
    answer: Any = None

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            got = type(body).__name__
            raise ValueError(
                f"the body must be a JSON object with Content-Type: application/json, got {got}."
            )
        known = [name for name in cls.model_fields if name != "user"]
        for key, value in body.items():
            if key not in cls.model_fields and key not in NEUTRAL:
                raise ValueError(
                    f"unknown key {key!r}{did_you_mean(key, known) or ';'} keys: {', '.join(known)}."
                )
            if key in NEUTRAL and value is not None and value not in NEUTRAL[key]:
                raise ValueError(f"{key} is not supported, got {json.dumps(value)[:80]}; leave it out.")
        return {key: value for key, value in body.items() if key in cls.model_fields}

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of must be >= n = {self.n}, got {self.best_of}.")
        if not all(self._stops()):
            raise ValueError("stop must not contain an empty text; leave it out.")
        self.prompts()
        return self

    def _stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @abstractmethod
    def prompts(self) -> list[Messages | str | tuple[int, ...]]:
        """Return the prompts of the request.

        Raises:
            ValueError: a value is not a prompt.
        """

    def generation_requests(self, info: ServerInfo, seed: int) -> list[GenerationRequest]:
        """Return one generation request per prompt.

        Args:
            info: options of the server.
            seed: seed if the request does not set one.

        Raises:
            ValueError: the server does not support the request.
        """
        prompts, best_of = self.prompts(), self.best_of
        if best_of is None and info.best_of is not None:
            best_of = max(info.best_of, self.n)
        if best_of is not None and info.scored_by is None:
            raise ValueError(f"best_of needs a [[reward]] in the served file, got {best_of}; leave it out.")
        if self.temperature == 0 and (best_of or self.n) > 1:
            raise ValueError(
                f"temperature must be > 0 for {best_of or self.n} responses per prompt, got 0: greedy "
                "responses are identical; raise it, or use n = 1 and best_of = 1."
            )
        top_p = info.top_p or 1.0
        if self.top_p not in (None, top_p):
            raise ValueError(
                f"top_p must be the sampler's, {top_p}, got {self.top_p}; leave it out, or start the server "
                "with --set sampler.top_p."
            )
        references = self._references(len(prompts))
        if best_of is None and self.answer is not None:
            raise ValueError("answer is only used with best_of, whose rewards read it; leave it out.")
        if best_of is not None and self.answer is None and info.reference_readers:
            readers = ", ".join(map(repr, info.reference_readers))
            raise ValueError(f"answer is missing: the reference answer, which the reward {readers} reads.")
        return [
            GenerationRequest(
                prompt=prompt,
                reference=reference,
                num_responses=best_of or self.n,
                is_ranked=best_of is not None,
                # Equal prompts of one request must not get equal responses.
                seed=(seed if self.seed is None else self.seed) + index * NUM_SEEDS,
                temperature=self.temperature,
                max_tokens=self._max_tokens(),
                stop=self._stops(),
            )
            for index, (prompt, reference) in enumerate(zip(prompts, references, strict=True))
        ]

    def _max_tokens(self) -> int | None:
        return self.max_tokens

    def _references(self, count: int) -> list[str]:
        """Return the reference answer to each prompt; a value that is not a text is encoded as JSON."""
        values = [self.answer] if count == 1 else self.answer
        if self.answer is None:
            return [""] * count
        if not isinstance(values, list) or len(values) != count:
            raise ValueError(
                f"answer must be a list with one reference answer for each of the {count} prompts."
            )
        return [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in values]


class CompletionRequest(_Request):
    """Body of ``/v1/completions``: a text, token ids, or a list of either."""

    prompt: Any

    def prompts(self) -> list[Messages | str | tuple[int, ...]]:
        is_list_of_prompts = isinstance(self.prompt, list) and not _is_ids(self.prompt)
        prompts = self.prompt if is_list_of_prompts else [self.prompt]
        is_valid = all(isinstance(each, str) or _is_ids(each) for each in prompts)
        if not is_valid or not 1 <= len(prompts) <= MAX_N:
            got = json.dumps(self.prompt)[:80]
            raise ValueError(f"prompt must be a text, token ids, or 1 to {MAX_N} of these, got {got}.")
        return [each if isinstance(each, str) else tuple(each) for each in prompts]


class ChatRequest(_Request):
    """Body of ``/v1/chat/completions``."""

    messages: Any
    max_completion_tokens: int | None = Field(None, ge=1)

    def prompts(self) -> list[Messages | str | tuple[int, ...]]:
        return [parse_messages("messages", _join_parts(self.messages))]

    def _max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int and each >= 0 for each in value)


def _join_parts(messages: Any) -> Any:
    """Return messages in which a content that is a list of text parts becomes one text."""
    if not isinstance(messages, list):
        return messages
    joined = []
    for message in messages:
        parts = message.get("content") if isinstance(message, dict) else None
        if isinstance(parts, list) and all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in parts
        ):
            message = message | {"content": "".join(part["text"] for part in parts)}
        joined.append(message)
    return joined


def reply(request: _Request, info: ServerInfo, results: Sequence[GenerationResult]) -> dict[str, Any]:
    """Return the body of the reply: the n best responses to each prompt with their scores, the best first.

    Args:
        request: the request.
        info: options of the server.
        results: one result per prompt.
    """
    is_chat = isinstance(request, ChatRequest)
    is_ranked = request.best_of is not None or info.best_of is not None
    best = [each for result in results for each in result.ranked[: request.n]]
    num_prompt_tokens = sum(result.num_prompt_tokens for result in results)
    num_tokens = sum(each.num_tokens for result in results for each in result.ranked)
    body: dict[str, Any] = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": info.name,
        "choices": [_choice(index, each, is_chat, is_ranked) for index, each in enumerate(best)],
        "usage": {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt_tokens + num_tokens,
        },
    }
    if is_ranked:
        scores = [[each.score for each in result.ranked] for result in results]
        body["best_of"] = {"scored_by": info.scored_by, "scores": scores}
    return body


def _choice(index: int, response: RankedResponse, is_chat: bool, is_ranked: bool) -> dict[str, Any]:
    message = {"role": "assistant", "content": response.text}
    text = {"message": message} if is_chat else {"text": response.text}
    choice: dict[str, Any] = {
        "index": index,
        **text,
        "logprobs": None,
        "finish_reason": FinishReason(response.finish_reason).label,
    }
    if is_ranked:
        rewards, failures = dict(response.rewards), dict(response.failures)
        choice |= {"score": response.score, "rewards": rewards, "failures": failures}
    return choice


def models_reply(info: ServerInfo, started: int) -> dict[str, Any]:
    """Return the body of ``/v1/models``.

    Args:
        info: name of the model.
        started: start of the server, seconds since 1970.
    """
    model = {"id": info.name, "object": "model", "created": started, "owned_by": "titanrl"}
    return {"object": "list", "data": [model]}
