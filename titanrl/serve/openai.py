"""Requests and replies of the OpenAI-compatible endpoints, as far as the best of N answers needs them.

Keys beyond OpenAI's: ``answer``, the reference answer that verifiers read, and ``best_of`` for chats too.
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
from titanrl.protocols import Messages
from titanrl.serve.best_of_n import GenerationRequest, GenerationResult, RankedResponse

__all__ = ["SEEDS", "ChatRequest", "CompletionRequest", "ServerInfo", "models_reply", "reply"]

MAX_N = 1024
"""Answers to a prompt, and prompts of a request, at most."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stream": (False,), "logprobs": (False, 0), "top_logprobs": (0,), "echo": (False,), "suffix": ("",),
    "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "tools": ([],),
    "response_format": ({"type": "text"},), "store": (False,), "metadata": ({},),
}  # fmt: skip
"""Keys of OpenAI's that are not served -> values that ask for nothing."""
SEEDS = 2**32
"""So many seeds a request may state."""
FINISH = ("stop", "length", "abort")


class ServerInfo(NamedTuple):
    """What requests are answered by."""

    name: str
    """Of the model, as clients write it."""
    best_of: int | None = None
    """Answers sampled where a request does not say; None: as many as it wants back."""
    scored_by: str | None = None
    """What ranks answers, in words; None: nothing does."""
    answer_readers: tuple[str, ...] = ()
    """Labels of the rewards that read the reference answer."""
    top_p: float | None = None
    """The sampler's."""


class _Request(BaseModel, ABC):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    user: str | None = None
    n: int = Field(1, ge=1, le=MAX_N)
    best_of: int | None = Field(None, ge=1, le=MAX_N)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=SEEDS)
    stop: str | list[str] | None = None
    answer: Any = None

    @model_validator(mode="before")
    @classmethod
    def _known(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            got = type(body).__name__
            raise ValueError(f"the body must be a JSON object, as Content-Type: application/json, got {got}.")
        known = [name for name in cls.model_fields if name != "user"]
        for key, value in body.items():
            if key not in cls.model_fields and key not in NEUTRAL:
                raise ValueError(
                    f"unknown key {key!r}{did_you_mean(key, known) or ';'} keys: {', '.join(known)}."
                )
            if key in NEUTRAL and value is not None and value not in NEUTRAL[key]:
                raise ValueError(f"{key} is not served, got {json.dumps(value)[:80]}; leave it out.")
        return {key: value for key, value in body.items() if key in cls.model_fields}

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of must be >= n = {self.n}, got {self.best_of}.")
        if not all(self._stops()):
            raise ValueError("stop must hold no empty text; leave it out.")
        self.prompts()
        return self

    def _stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @abstractmethod
    def prompts(self) -> list[Messages | str | tuple[int, ...]]:
        """Returns what is asked. Raises ValueError: it is no prompt."""

    def questions(self, served: ServerInfo, seed: int) -> list[GenerationRequest]:
        """Returns the request as the sampler understands it.

        Args:
            seed: where the request states none.

        Raises:
            ValueError: the server cannot do what is asked.
        """
        prompts, best_of = self.prompts(), self.best_of
        if best_of is None and served.best_of is not None:
            best_of = max(served.best_of, self.n)
        if best_of is not None and served.scored_by is None:
            raise ValueError(f"best_of needs a [[reward]] in the served file, got {best_of}; leave it out.")
        if self.temperature == 0 and (best_of or self.n) > 1:
            raise ValueError(
                f"temperature must be > 0 for {best_of or self.n} answers to a prompt, got 0: greedy answers "
                "are all the same; raise it, or ask with n and best_of 1."
            )
        top_p = served.top_p or 1.0
        if self.top_p not in (None, top_p):
            raise ValueError(
                f"top_p must be the sampler's, {top_p}, got {self.top_p}; leave it out, or start the server "
                "with --set sampler.top_p."
            )
        answers = self._answers(len(prompts))
        if best_of is None and self.answer is not None:
            raise ValueError("answer is used with best_of alone, whose rewards read it; leave it out.")
        if best_of is not None and self.answer is None and served.answer_readers:
            readers = ", ".join(map(repr, served.answer_readers))
            raise ValueError(f"answer is missing: the reference answer, which the reward {readers} reads.")
        return [
            GenerationRequest(
                prompt=prompt, answer=answer, num=best_of or self.n, is_judged=best_of is not None,
                # Equal prompts of one request shall not get equal answers.
                seed=(seed if self.seed is None else self.seed) + place * SEEDS, temperature=self.temperature,
                max_tokens=self._longest(), stop=self._stops(),
            )
            for place, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        ]  # fmt: skip

    def _longest(self) -> int | None:
        return self.max_tokens

    def _answers(self, count: int) -> list[str]:
        """Returns the reference answer to each prompt; one that is no text goes to rewards as JSON."""
        answers = [self.answer] if count == 1 else self.answer
        if self.answer is None:
            return [""] * count
        if not isinstance(answers, list) or len(answers) != count:
            raise ValueError(f"answer must be a list with one for each of the {count} prompts.")
        return [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in answers]


class CompletionRequest(_Request):
    """Body of ``/v1/completions``: a text, token ids, or a list of either."""

    prompt: Any

    def prompts(self) -> list[Messages | str | tuple[int, ...]]:
        several = isinstance(self.prompt, list) and not _is_ids(self.prompt)
        found = self.prompt if several else [self.prompt]
        is_right = all(isinstance(each, str) or _is_ids(each) for each in found)
        if not is_right or not 1 <= len(found) <= MAX_N:
            got = json.dumps(self.prompt)[:80]
            raise ValueError(f"prompt must be a text, token ids, or 1 to {MAX_N} of these, got {got}.")
        return [each if isinstance(each, str) else tuple(each) for each in found]


class ChatRequest(_Request):
    """Body of ``/v1/chat/completions``."""

    messages: Any
    max_completion_tokens: int | None = Field(None, ge=1)

    def prompts(self) -> list[Messages | str | tuple[int, ...]]:
        return [parse_messages("messages", _joined(self.messages))]

    def _longest(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int and each >= 0 for each in value)


def _joined(messages: Any) -> Any:
    """Returns messages whose content is one text where it came as a list of text parts."""
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


def reply(request: _Request, served: ServerInfo, results: Sequence[GenerationResult]) -> dict[str, Any]:
    """Returns the body of the reply: the n best answers to each prompt, the best first, with their scores."""
    is_chat = isinstance(request, ChatRequest)
    choices = [each for answers in results for each in answers.ranked[: request.n]]
    judged = request.best_of is not None or served.best_of is not None
    made = [_choice(index, each, is_chat, judged) for index, each in enumerate(choices)]
    sampled = sum(each.tokens for answers in results for each in answers.ranked)
    asked = sum(answers.prompt_tokens for answers in results)
    body: dict[str, Any] = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": served.name,
        "choices": made,
        "usage": {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled},
    }
    if judged:
        scores = [[each.score for each in answers.ranked] for answers in results]
        body["best_of"] = {"scored_by": served.scored_by, "scores": scores}
    return body


def _choice(index: int, answer: RankedResponse, is_chat: bool, judged: bool) -> dict[str, Any]:
    text = {"message": {"role": "assistant", "content": answer.text}} if is_chat else {"text": answer.text}
    choice: dict[str, Any] = {
        "index": index,
        **text,
        "logprobs": None,
        "finish_reason": FINISH[answer.finish_reason],
    }
    if judged:
        choice |= {"score": answer.score, "rewards": dict(answer.rewards), "failures": dict(answer.failures)}
    return choice


def models_reply(served: ServerInfo, started: int) -> dict[str, Any]:
    """Returns the body of ``/v1/models``.

    Args:
        started: seconds since 1970.
    """
    model = {"id": served.name, "object": "model", "created": started, "owned_by": "titanrl"}
    return {"object": "list", "data": [model]}
