"""The rating of another language model, asked over an OpenAI-compatible server."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from titanrl.components.rewards.http_json import LateAnswer, ask
from titanrl.components.rewards.text import last_number, texts
from titanrl.errors import TrainingError, check_range
from titanrl.ops.scores import filled
from titanrl.registry import register

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
    """Returns ``(x - low) / (high - low)``, x the last number in what a language model says of the answer.

    Every answer is a request of its own, at temperature 0. A reply without a number within the scale, or a
    late one, is a failure; a server that cannot be reached or refuses the request ends the run.

    Source: MT-bench, arXiv 2306.05685 section 3.1 (single answer grading).
    """

    endpoint: str
    """Address of an OpenAI-compatible server, such as `http://node7:8000/v1`."""
    model: str
    """Name of the judge at that server."""
    template: str = TEMPLATE
    """What it is asked; {prompt}, {response} and {answer} stand for the row's texts, {response} is needed."""
    scale: tuple[float, float] = (1.0, 10.0)
    """Ratings that give 0 and 1, low < high."""
    timeout_seconds: float = 60.0
    """Longest wait for the rating of one answer, with all tries, seconds, > 0."""
    retries: int = 3
    """Tries after a failed one (no connection, or a status such as 429 or 503), >= 0."""
    concurrency: int = 16
    """Answers that are rated side by side, >= 1."""
    failure: float = 0.0
    """Score of an answer whose rating failed."""
    key_file: str | None = None
    """File that holds the server's API key; omitted: none is sent."""

    def __post_init__(self) -> None:
        if not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint must begin with http:// or https://, got {self.endpoint!r}.")
        if "{response}" not in self.template:
            raise ValueError("template must hold {response}, or every answer would get one rating.")
        if not self.scale[0] < self.scale[1]:
            raise ValueError(f"scale must be [low, high] with low < high, got {list(self.scale)}.")
        check_range(self, "timeout_seconds", "(0, inf)")
        check_range(self, "retries", "[0, inf)")
        check_range(self, "concurrency", "[1, inf)")
        check_range(self, "failure", "(-inf, inf)")

    @property
    def in_keys(self) -> tuple[tuple[str, ...], ...]:
        return tuple(("text", name) for name in FIELDS if f"{{{name}}}" in self.template)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32 in [0, 1], or failure."""
        return filled(self.scores(batch), self.failure)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns one score a row, or why the rating is none.

        Raises:
            TrainingError: the server cannot be reached or refuses the request.
        """
        columns = [texts(batch, name) for name in FIELDS]
        rows = [dict(zip(FIELDS, row, strict=True)) for row in zip(*columns, strict=True)]
        headers = {}
        if self.key_file is not None:
            headers["Authorization"] = f"Bearer {Path(self.key_file).read_text('utf-8').strip()}"
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="titanrl-judge") as pool:
            return list(pool.map(lambda row: self._score(row, headers), rows))

    def _score(self, row: dict[str, str], headers: dict[str, str]) -> float | str:
        # In one pass: a text may itself hold {answer}.
        asked = re.sub(r"\{(prompt|response|answer)\}", lambda match: row[match[1]], self.template)
        # JSON has no lone surrogates.
        content = asked.encode("utf-8", "replace").decode()
        body = {"model": self.model, "temperature": 0, "messages": [{"role": "user", "content": content}]}
        url = f"{self.endpoint.rstrip('/')}/chat/completions"
        try:
            reply = ask(
                url, body, timeout_seconds=self.timeout_seconds, retries=self.retries, headers=headers
            )
        except LateAnswer as error:
            return str(error)
        try:
            said = str(reply["choices"][0]["message"]["content"])
        except (TypeError, KeyError, IndexError):
            raise TrainingError(f"{url} gives no chat completion, got {str(reply)[:200]!r}.") from None
        (low, high), rating = self.scale, last_number(said)
        if rating is None or not low <= rating <= high:
            return f"the judge gave no rating in [{low:g}, {high:g}], it said {said[-100:]!r}"
        return (rating - low) / (high - low)
