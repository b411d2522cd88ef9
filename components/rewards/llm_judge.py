"""LLM as a judge: the rating of a language model behind an OpenAI-compatible server."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch

from titanrl.components.rewards.http_json import ServerUnavailable, fetch_json, json_client
from titanrl.components.rewards.rating import parse_rating
from titanrl.components.rewards.text import texts
from titanrl.errors import ConfigError, TrainingError
from titanrl.ops.scores import fill_missing_scores
from titanrl.registry import Range, register

if TYPE_CHECKING:
    import httpx
    from tensordict import TensorDict

__all__ = ["LLMJudge"]

TEMPLATE = """\
Rate how good the answer to the question is, from 1 (useless) to 10 (perfect).

Question:
{prompt}

Answer:
{response}

Think about it briefly, then end with the rating, a number alone."""
FIELDS = {"prompt": "conversation", "response": "response", "answer": "answer"}
"""Placeholder of the template -> text of the row that replaces it."""
MAX_REPLY_BYTES = 4 * 2**20
"""Limit of a judge's reply."""


@register("reward", "llm_judge")
@dataclass(frozen=True, slots=True, kw_only=True)
class LLMJudge:
    """Rating of the response by a language model, scaled to [0, 1].

        reward = (x - low) / (high - low),  x the rating that the model's reply states

    Each response is rated by one request, at temperature 0. The reply must state one rating: the last line
    is a number, alone or as in `Score: 7`, `7 / 10`, `7 (out of 10)`, `[[7]]`, or the reply contains only
    one number. The rating has failed, and `failure_score` is the score, if the reply is ambiguous (`7-8`),
    outside the scale, cut at its token limit or malformed, or if the request times out or is rejected. If
    the server cannot be reached for any row, or rejects the key or the address, the run stops.

    Source: MT-bench, arXiv 2306.05685 section 3.1 (single answer grading).
    """

    endpoint: str
    """Address of an OpenAI-compatible server, such as `http://node7:8000/v1`."""
    model: str
    """Name of the model on that server."""
    template: str = TEMPLATE
    """Prompt of the rating; {prompt} (of a chat: all its messages), {response} and {answer} are replaced by
    the row's texts, {response} is required."""
    scale: Annotated[tuple[float, float], Range("(-inf, inf)")] = (1.0, 10.0)
    """Ratings that map to 0 and 1; the first must be < the second."""
    timeout_seconds: Annotated[float, Range("(0, inf)")] = 60.0
    """Time limit per response, all attempts included, seconds."""
    retries: Annotated[int, Range("[0, inf)")] = 3
    """Attempts after a failed one (no connection, or a status such as 429 or 503)."""
    concurrency: Annotated[int, Range("[1, inf)")] = 16
    """Number of concurrent requests."""
    failure_score: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Score of a response whose rating failed."""
    key_file: str | None = None
    """File with the server's API key; omitted: no key is sent."""

    def __post_init__(self) -> None:
        if not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint must begin with http:// or https://, got {self.endpoint!r}.")
        if "{response}" not in self.template:
            raise ValueError(
                "template must contain {response}; otherwise every response gets the same rating."
            )
        if not self.scale[0] < self.scale[1]:
            raise ValueError(f"scale must be [low, high] with low < high, got {list(self.scale)}.")

    @property
    def in_keys(self) -> tuple[tuple[str, ...], ...]:
        return tuple(("text", key) for name, key in FIELDS.items() if f"{{{name}}}" in self.template)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32 in [0, 1], or failure_score."""
        return fill_missing_scores(self.scores(batch), self.failure_score)

    def max_seconds(self, num_rows: int) -> float:
        """Returns the longest time that rating ``num_rows`` responses may take, seconds."""
        return math.ceil(num_rows / self.concurrency) * self.timeout_seconds

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns the score of each row, or the reason why its rating failed.

        Raises:
            ConfigError: the key file cannot be read.
            TrainingError: no row could be sent: the server cannot be reached, or rejects key or address.
        """
        from anyio.from_thread import start_blocking_portal

        names = [name for name, key in FIELDS.items() if ("text", key) in self.in_keys]
        columns = [texts(batch, FIELDS[name]) for name in names]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        headers = self._headers()
        with start_blocking_portal(name="titanrl-judge") as portal:
            results = portal.call(self._score_all, rows, headers)
        # One row's failure is that row's; if no row reaches the server, it is the server's.
        if results and all(isinstance(each, ServerUnavailable) for each in results):
            raise results[0]  # type: ignore[misc]
        return [str(each) if isinstance(each, TrainingError) else each for each in results]

    def _headers(self) -> dict[str, str]:
        if self.key_file is None:
            return {}
        try:
            key = Path(self.key_file).read_text("ascii").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"reward 'llm_judge' key_file '{self.key_file}' cannot be read: {error}; name a file with "
                "the key alone, in ASCII."
            ) from None
        return {"Authorization": f"Bearer {key}"}

    async def _score_all(
        self, rows: list[dict[str, str]], headers: dict[str, str]
    ) -> list[float | str | TrainingError]:
        import asyncio

        limit = asyncio.Semaphore(self.concurrency)
        async with json_client(headers, connections=self.concurrency) as client:

            async def score(row: dict[str, str]) -> float | str | TrainingError:
                async with limit:
                    return await self._score(client, row)

            return list(await asyncio.gather(*map(score, rows)))

    async def _score(self, client: httpx.AsyncClient, row: dict[str, str]) -> float | str | TrainingError:
        # One pass, because a text may itself contain {answer}.
        text = re.sub(r"\{(prompt|response|answer)\}", lambda match: row[match[1]], self.template)
        # Lone surrogates have no form in UTF-8.
        content = text.encode("utf-8", "replace").decode()
        payload = {"model": self.model, "temperature": 0, "messages": [{"role": "user", "content": content}]}
        url = f"{self.endpoint.rstrip('/')}/chat/completions"
        try:
            reply = await fetch_json(
                client,
                url,
                payload,
                timeout_seconds=self.timeout_seconds,
                retries=self.retries,
                max_bytes=MAX_REPLY_BYTES,
            )
        except TrainingError as error:
            return error
        return self._read(url, reply)

    def _read(self, url: str, reply: Any) -> float | str:
        try:
            choice = reply["choices"][0]
            rating_text = choice["message"]["content"]
            is_cut = choice.get("finish_reason") == "length"
        except (TypeError, KeyError, IndexError, AttributeError):
            return f"{url} did not return a chat completion, got {str(reply)[:200]!r}"
        if not isinstance(rating_text, str):
            return f"{url} did not return a text, got {str(rating_text)[:200]!r}"
        if is_cut:
            return f"the model's reply was cut at its token limit, it ends with {rating_text[-100:]!r}"
        (low, high), rating = self.scale, parse_rating(rating_text, self.scale)
        return rating if isinstance(rating, str) else (rating - low) / (high - low)
