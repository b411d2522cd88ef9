"""LLM as a judge: the rating of a language model behind an OpenAI-compatible server."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch

from titanrl.components.rewards.http_json import ServerTimeout, request_json
from titanrl.components.rewards.text import last_number, texts
from titanrl.errors import TrainingError
from titanrl.ops.scores import fill_missing_scores
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["LLMJudge"]

TEMPLATE = """\
Rate how good the answer to the question is, from 1 (useless) to 10 (perfect).

Question:
{prompt}

Answer:
{response}

Think about it briefly, then end with the rating, a number alone."""
FIELDS = ("prompt", "response", "answer")


@register("reward", "llm_judge")
@dataclass(frozen=True, slots=True, kw_only=True)
class LLMJudge:
    """Rating of the response by a language model, scaled to [0, 1].

        reward = (x - low) / (high - low),  x the last number in the model's reply

    Each response is rated by one request, at temperature 0. If the reply has no number within the scale or
    exceeds the timeout, the rating has failed and `failure_score` is the score. A server that cannot be
    reached or rejects the request stops the run.

    Source: MT-bench, arXiv 2306.05685 section 3.1 (single answer grading).
    """

    endpoint: str
    """Address of an OpenAI-compatible server, such as `http://node7:8000/v1`."""
    model: str
    """Name of the model on that server."""
    template: str = TEMPLATE
    """Prompt of the rating; {prompt}, {response} and {answer} are replaced by the row's texts, {response} is
    required."""
    scale: tuple[float, float] = (1.0, 10.0)
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
        return tuple(("text", name) for name in FIELDS if f"{{{name}}}" in self.template)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32 in [0, 1], or failure_score."""
        return fill_missing_scores(self.scores(batch), self.failure_score)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns the score of each row, or the reason why its rating failed.

        Raises:
            TrainingError: the server cannot be reached or rejects the request.
        """
        columns = [texts(batch, name) for name in FIELDS]
        rows = [dict(zip(FIELDS, row, strict=True)) for row in zip(*columns, strict=True)]
        headers = {}
        if self.key_file is not None:
            headers["Authorization"] = f"Bearer {Path(self.key_file).read_text('utf-8').strip()}"
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="titanrl-judge") as pool:
            return list(pool.map(lambda row: self._score(row, headers), rows))

    def _score(self, row: dict[str, str], headers: dict[str, str]) -> float | str:
        # One pass, because a text may itself contain {answer}.
        text = re.sub(r"\{(prompt|response|answer)\}", lambda match: row[match[1]], self.template)
        # JSON has no lone surrogates.
        content = text.encode("utf-8", "replace").decode()
        payload = {"model": self.model, "temperature": 0, "messages": [{"role": "user", "content": content}]}
        url = f"{self.endpoint.rstrip('/')}/chat/completions"
        try:
            reply = request_json(
                url, payload, timeout_seconds=self.timeout_seconds, retries=self.retries, headers=headers
            )
        except ServerTimeout as error:
            return str(error)
        try:
            rating_text = str(reply["choices"][0]["message"]["content"])
        except (TypeError, KeyError, IndexError):
            raise TrainingError(
                f"{url} did not return a chat completion, got {str(reply)[:200]!r}."
            ) from None
        (low, high), rating = self.scale, last_number(rating_text)
        if rating is None or not low <= rating <= high:
            return (
                f"the model gave no rating in [{low:g}, {high:g}], its reply ends with {rating_text[-100:]!r}"
            )
        return (rating - low) / (high - low)
