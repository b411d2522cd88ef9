"""Requests of the OpenAI-compatible endpoints, reduced to what best-of-N generation supports.

Keys beyond OpenAI's: ``answer``, the reference answer for verifiers, and ``best_of`` for chats as well.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from titanrl.components.sources.records.rows import parse_messages
from titanrl.errors import did_you_mean
from titanrl.protocols import Messages
from titanrl.serve.best_of_n import GenerationRequest

__all__ = ["NUM_SEEDS", "ChatRequest", "CompletionRequest", "ServerInfo", "parse_body"]

MAX_N = 1024
"""Limit of responses per request, over all of its prompts."""
MAX_STOPS, MAX_STOP_LENGTH = 16, 256
"""Limits of the stop texts of a request."""
MIN_TEMPERATURE = 0.01
"""Smallest temperature other than 0: logits divided by less are no longer finite."""
MAX_TOP = 20
"""Limit of ``top_logprobs``."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "metadata": ({},),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
}
"""Keys of OpenAI and vLLM that are not supported -> values without effect, which are accepted."""
IGNORED = ("user", "safety_identifier", "prompt_cache_key")
"""Keys that name the client; any text is accepted."""
MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
"""Keys of a message that the chat template gets."""
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
    scored_without: str | None = None
    """What ranks the responses to a request without a reference answer; None: nothing can."""
    reference_readers: tuple[str, ...] = ()
    """Labels of the rewards that read the reference answer."""
    top_p: float | None = None
    """The sampler's top_p; None: it has none."""


class StreamOptions(BaseModel):
    """The key ``stream_options``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None


class _Request(BaseModel, ABC):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    n: int = Field(1, ge=1, le=MAX_N)
    stream: bool = False
    stream_options: StreamOptions | None = None
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
            raise ValueError(f"the body must be a JSON object, got {got}.")
        known = [name for name in cls.model_fields if name not in IGNORED]
        for key, value in body.items():
            if key not in cls.model_fields and key not in NEUTRAL:
                hint = did_you_mean(key[:80], known) or ";"
                raise ValueError(f"unknown key {key[:80]!r}{hint} keys: {', '.join(known)}.")
            if key in NEUTRAL and value is not None and value not in NEUTRAL[key]:
                raise ValueError(f"{key} is not supported, got {json.dumps(value)[:80]}; leave it out.")
        # null stands for the default, as in OpenAI's API.
        return {key: value for key, value in body.items() if key in cls.model_fields and value is not None}

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of must be >= n = {self.n}, got {self.best_of}.")
        if self.temperature is not None and 0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"temperature must be 0 or in [{MIN_TEMPERATURE}, 2], got {self.temperature}; 0 is greedy."
            )
        stops = self._stops()
        if not all(stops):
            raise ValueError("stop must not contain an empty text; leave it out.")
        if len(stops) > MAX_STOPS or max(map(len, stops), default=0) > MAX_STOP_LENGTH:
            raise ValueError(
                f"stop must be at most {MAX_STOPS} texts of at most {MAX_STOP_LENGTH} characters."
            )
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only used with stream = true; leave it out.")
        self.num_top()
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

    @abstractmethod
    def num_top(self) -> int | None:
        """Return the number of tokens to report beside each log-prob; None: no log-probs."""

    def generation_requests(self, info: ServerInfo, seed: int) -> list[GenerationRequest]:
        """Return one generation request per prompt.

        Args:
            info: options of the server.
            seed: seed if the request does not set one.

        Raises:
            ValueError: the server does not support the request.
        """
        prompts, best_of = self.prompts(), self._best_of(info)
        num_responses = best_of or self.n
        if len(prompts) * num_responses > MAX_N:
            raise ValueError(
                f"the request asks for {len(prompts)} x {num_responses} responses, more than {MAX_N}; send "
                "several requests."
            )
        if self.temperature == 0 and num_responses > 1:
            raise ValueError(
                f"temperature must be > 0 for {num_responses} responses per prompt, got 0: greedy "
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
        return [
            GenerationRequest(
                prompt=prompt,
                reference=reference,
                num_responses=num_responses,
                is_ranked=best_of is not None,
                # Equal prompts of one request must not get equal responses.
                seed=(seed if self.seed is None else self.seed) + index * NUM_SEEDS,
                temperature=self.temperature,
                max_tokens=self._max_tokens(),
                stop=self._stops(),
                num_top=self.num_top(),
            )
            for index, (prompt, reference) in enumerate(zip(prompts, references, strict=True))
        ]

    def _best_of(self, info: ServerInfo) -> int | None:
        """Return the number of responses to sample and rank; None: they are not ranked."""
        best_of = self.best_of
        if best_of is not None and info.scored_by is None:
            if best_of == self.n:
                return None
            raise ValueError(f"best_of needs a [[reward]] in the served file, got {best_of}; leave it out.")
        can_rank = self.answer is not None or not info.reference_readers or info.scored_without is not None
        if best_of is not None and not can_rank:
            readers = ", ".join(map(repr, info.reference_readers))
            raise ValueError(f"answer is missing: the reference answer, which the reward {readers} reads.")
        if best_of is not None or info.best_of is None:
            return best_of
        if not can_rank:
            return None
        # Greedy responses are identical.
        return self.n if self.temperature == 0 else max(info.best_of, self.n)

    def _max_tokens(self) -> int | None:
        return self.max_tokens

    def _references(self, count: int) -> list[str | None]:
        """Return the reference answer to each prompt; a value that is not a text is encoded as JSON."""
        values = [self.answer] if count == 1 else self.answer
        if self.answer is None:
            return [None] * count
        if not isinstance(values, list) or len(values) != count:
            raise ValueError(
                f"answer must be a list with one reference answer for each of the {count} prompts."
            )
        return [
            each if isinstance(each, str) else json.dumps(each, ensure_ascii=False, allow_nan=False)
            for each in values
        ]


class CompletionRequest(_Request):
    """Body of ``/v1/completions``: a text, token ids, or a list of either."""

    prompt: Any
    logprobs: bool | int | None = None

    def num_top(self) -> int | None:
        if self.logprobs is None or self.logprobs is False:
            return None
        if not 0 <= self.logprobs <= MAX_TOP:
            raise ValueError(f"logprobs must be in [0, {MAX_TOP}], got {self.logprobs}.")
        return 0 if self.logprobs is True else self.logprobs

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
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    max_completion_tokens: int | None = Field(None, ge=1)

    def num_top(self) -> int | None:
        if not self.logprobs:
            if self.top_logprobs:
                raise ValueError("top_logprobs is only used with logprobs = true; leave it out.")
            return None
        return self.top_logprobs or 0

    def prompts(self) -> list[Messages | str | tuple[int, ...]]:
        parsed = parse_messages("messages", self.messages)
        for index, message in enumerate(self.messages):
            for key, value in message.items():
                if key not in MESSAGE_KEYS and value not in (None, "", [], {}):
                    got = json.dumps(value)[:80]
                    raise ValueError(
                        f"messages[{index}].{key[:80]} is not supported, got {got}; leave it out."
                    )
        return [parsed]

    def _max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def parse_body(
    body: bytes, kind: type[CompletionRequest] | type[ChatRequest]
) -> CompletionRequest | ChatRequest:
    """Return a request.

    Args:
        body: JSON.
        kind: the class of the request.

    Raises:
        ValueError: the body is not strict JSON (also NaN, lone surrogates, deep nesting), or not a request.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}.") from None
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False)[:5]
        raise ValueError("; ".join(_describe(problem) for problem in problems)) from None


def _describe(problem: Any) -> str:
    """Return the message of an invalid value: our own as it is, pydantic's with key and value."""
    reason = problem.get("ctx", {}).get("error")
    if isinstance(reason, ValueError):
        return str(reason)
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{key or 'the body'} is missing."
    return f"{key}: {problem['msg']}, got {problem['input']!r:.80}."


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int and each >= 0 for each in value)
