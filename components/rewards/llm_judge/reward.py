"""LLM as a judge: ratings, rubrics and comparisons by a model behind an OpenAI-compatible server."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch

from titanrl.components.rewards.http_json import ServerUnavailable
from titanrl.components.rewards.llm_judge.cache import JudgementCache, judgement_cache
from titanrl.components.rewards.llm_judge.client import JudgeServer, ask_all
from titanrl.components.rewards.llm_judge.prompts import TEMPLATES, criteria_of, filled, opponents
from titanrl.components.rewards.rating import parse_choice, parse_rating
from titanrl.components.rewards.text import texts
from titanrl.errors import ConfigError, TrainingError
from titanrl.ops.columns import lookup
from titanrl.ops.scores import fill_missing_scores
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["LLMJudge"]

FIELDS = {"prompt": "conversation", "response": "response", "answer": "answer"}
"""Placeholder of the template -> text of the row that replaces it."""
REQUIRED = {
    "rating": ("{response}",),
    "rubric": ("{response}", "{criterion}"),
    "pairwise": ("{first}", "{second}"),
}
OWN_KEYS = {
    "scale": "rating",
    "rubric": "rubric",
    "opponents": "pairwise",
}
"""Key -> the only mode that uses it."""
YES_NO = {"yes": 1.0, "no": 0.0}
VERDICTS = {"a": 1.0, "b": 0.0, "tie": 0.5}


class _Plan(NamedTuple):
    """The requests that score one response."""

    requests: list[str]
    combine: Callable[[Sequence[float]], float]
    """Scores of the requests -> score of the response."""


@register("reward", "llm_judge")
@dataclass(frozen=True, slots=True, kw_only=True)
class LLMJudge:
    """Judgement of the response by a language model, in [0, 1].

        rating    (x - low) / (high - low),  x the rating that the model's reply states
        rubric    sum of w_k over the criteria k that are met / sum of the positive w_k, clipped to [0, 1]
        pairwise  mean over opponents of (r(response, opponent) + 1 - r(opponent, response)) / 2

    `rating` is one request per response. `rubric` is one request per criterion of the row's rubric, which is
    met or not. `pairwise` compares the response with each opponent in both orders; r is 1 if the first answer
    is better, 0 if the second is, 0.5 for a tie, so a judge that prefers a position decides nothing.

    Requests are made at temperature 0. A reply must state one judgement. A rating is the last line, a number
    alone or as in `Score: 7`, `7 / 10`, `7 (out of 10)`, `[[7]]`, or the only number of the reply. The other
    modes need a last line that is `yes` or `no`, or `A`, `B` or `tie`. A request fails if the reply is
    ambiguous (`7-8`), outside the scale, cut at its token limit or malformed, or if it times out or is
    rejected. A response with a failed request has no score, and `failure_score` counts. If the server cannot
    be reached for any request, or rejects the key or the address, the run stops.

    Equal requests are made once: judgements are kept by the content of the request, in memory or in a file
    that later runs read. Failures are not kept.

    Source: MT-bench, arXiv 2306.05685 section 3.1; rubrics: HealthBench, arXiv 2505.08775.
    """

    endpoint: str
    """Address of an OpenAI-compatible server, such as `http://node7:8000/v1`."""
    model: str
    """Name of the model on that server."""
    mode: Literal["rating", "rubric", "pairwise"] = "rating"
    """What the model is asked for."""
    template: str | None = None
    """Prompt of a request; omitted: one per mode. {prompt} (of a chat: all its messages), {response} and
    {answer} are replaced by the row's texts. Required are {response}, for a rubric {criterion} too, and for
    pairwise {first} and {second} instead."""
    scale: Annotated[tuple[float, float], Range("(-inf, inf)")] = (1.0, 10.0)
    """Ratings that map to 0 and 1; the first must be < the second. With mode = "rating" only."""
    rubric: str = "rubric"
    """Column of the criteria: a list, or JSON of one, of texts or of mappings with `criterion` and `weight`
    (or `points`); dots reach into tables. With mode = "rubric" only."""
    opponents: Literal["answer", "group"] = "answer"
    """`answer`: the reference answer. `group`: the other responses to the prompt. With mode = "pairwise"
    only."""
    max_requests: Annotated[int, Range("[2, inf)")] = 32
    """Most requests per response. A rubric with more criteria fails; of a larger group, the following
    max_requests / 2 responses are opponents."""
    cache_file: str | None = None
    """SQLite file of judgements, which runs and ranks may share; omitted: memory of the process."""
    timeout_seconds: Annotated[float, Range("(0, inf)")] = 60.0
    """Time limit per request, all attempts included, seconds."""
    retries: Annotated[int, Range("[0, inf)")] = 3
    """Attempts after a failed one (no connection, or a status such as 429 or 503)."""
    concurrency: Annotated[int, Range("[1, inf)")] = 16
    """Number of concurrent requests."""
    failure_score: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Score of a response whose judgement failed."""
    key_file: str | None = None
    """File with the server's API key; omitted: no key is sent."""

    def __post_init__(self) -> None:
        if not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint must begin with http:// or https://, got {self.endpoint!r}.")
        for placeholder in REQUIRED[self.mode]:
            if placeholder not in self._template:
                raise ValueError(
                    f"template must contain {placeholder} with mode = {self.mode!r}; otherwise every "
                    "response gets the same judgement."
                )
        if not self.scale[0] < self.scale[1]:
            raise ValueError(f"scale must be [low, high] with low < high, got {list(self.scale)}.")
        for key, mode in OWN_KEYS.items():
            default = type(self).__dataclass_fields__[key].default
            if self.mode != mode and getattr(self, key) != default:
                raise ValueError(
                    f"{key} is not used with mode = {self.mode!r}, got {getattr(self, key)!r}; leave it out."
                )

    @property
    def _template(self) -> str:
        return TEMPLATES[self.mode] if self.template is None else self.template

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]:
        names = [name for name in FIELDS if f"{{{name}}}" in self._template]
        if self.mode == "pairwise":
            names += ["response", *["answer"][: self.opponents == "answer"]]
        keys: list[str | tuple[str, ...]] = [("text", FIELDS[name]) for name in dict.fromkeys(names)]
        keys += [("text", "columns")][: self.mode == "rubric"]
        keys += ["group_id"][: self.mode == "pairwise" and self.opponents == "group"]
        return tuple(keys)

    @property
    def in_columns(self) -> tuple[str, ...]:
        return (self.rubric,) if self.mode == "rubric" else ()

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32 in [0, 1], or failure_score."""
        return fill_missing_scores(self.scores(batch), self.failure_score)

    def max_seconds(self, num_rows: int) -> float:
        """Returns the longest time that the requests for ``num_rows`` responses may take, seconds."""
        per_row = {"rating": 1, "rubric": self.max_requests, "pairwise": self.max_requests}[self.mode]
        if self.mode == "pairwise" and self.opponents == "answer":
            per_row = 2
        return math.ceil(num_rows * per_row / self.concurrency) * self.timeout_seconds

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns the score of each row, or the reason why its judgement failed.

        Raises:
            ConfigError: the key file or the cache file cannot be used.
            TrainingError: no request could be sent: the server cannot be reached, or rejects key or address.
        """
        plans = self._plans(batch)
        requests = [text for plan in plans if not isinstance(plan, str) for text in plan.requests]
        results_by_text = self._judge(list(dict.fromkeys(requests)))
        scores: list[float | str] = []
        for plan in plans:
            if isinstance(plan, str):
                scores.append(plan)
                continue
            parts = [results_by_text[text] for text in plan.requests]
            failed = next((part for part in parts if isinstance(part, str)), None)
            scores.append(plan.combine([float(part) for part in parts]) if failed is None else failed)
        return scores

    def _plans(self, batch: TensorDict) -> list[_Plan | str]:
        """Returns the requests of each row, or why it has none."""
        names = [name for name, key in FIELDS.items() if ("text", key) in self.in_keys]
        columns = [texts(batch, FIELDS[name]) for name in names]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        if self.mode == "rating":
            return [_Plan([filled(self._template, row)], lambda parts: parts[0]) for row in rows]
        if self.mode == "rubric":
            values = [lookup(each, self.rubric) for each in batch["text", "columns"]]
            return [self._rubric_plan(row, value) for row, value in zip(rows, values, strict=True)]
        if self.opponents == "answer":
            return [self._pairwise_plan(row, [row["answer"]]) for row in rows]
        others = opponents(batch["group_id"].tolist(), self.max_requests // 2)
        return [
            self._pairwise_plan(row, [rows[index]["response"] for index in indices])
            for row, indices in zip(rows, others, strict=True)
        ]

    def _rubric_plan(self, row: dict[str, str], value: Any) -> _Plan | str:
        try:
            criteria = criteria_of(value)
        except ValueError as error:
            return f"the column {self.rubric!r} {error}"
        if len(criteria) > self.max_requests:
            return f"the rubric has {len(criteria)} criteria, more than max_requests = {self.max_requests}"
        best = math.fsum(criterion.weight for criterion in criteria if criterion.weight > 0)

        def combine(met: Sequence[float]) -> float:
            total = math.fsum(each.weight * part for each, part in zip(criteria, met, strict=True))
            return min(max(total / best, 0.0), 1.0)

        return _Plan([filled(self._template, row | {"criterion": each.text}) for each in criteria], combine)

    def _pairwise_plan(self, row: dict[str, str], others: list[str]) -> _Plan | str:
        if not others:
            return "its group has no other response to compare it with; raise samples_per_prompt"
        own, requests = row["response"], []
        for other in others:
            requests.append(filled(self._template, row | {"first": own, "second": other}))
            requests.append(filled(self._template, row | {"first": other, "second": own}))

        def combine(wins: Sequence[float]) -> float:
            return math.fsum([*wins[::2], *(1 - each for each in wins[1::2])]) / len(wins)

        return _Plan(requests, combine)

    def _judge(self, requests: list[str]) -> dict[str, float | str]:
        """Returns the judgement of each request, or why it failed."""
        url = f"{self.endpoint.rstrip('/')}/chat/completions"
        scale = self.scale if self.mode == "rating" else None
        keys = {text: JudgementCache.key(url, self.model, self.mode, scale, text) for text in requests}
        cache = judgement_cache(self.cache_file)
        known = cache.get(list(keys.values()))
        new = [text for text in requests if keys[text] not in known]
        server = JudgeServer(
            url, self.model, self._headers(), self.timeout_seconds, self.retries, self.concurrency
        )
        results = dict(zip(new, ask_all(server, new, self._read), strict=True)) if new else {}
        # One request's failure is its own; if none reaches the server, it is the server's.
        if results and all(isinstance(each, ServerUnavailable) for each in results.values()):
            raise next(iter(results.values()))  # type: ignore[misc]
        cache.put({keys[text]: each for text, each in results.items() if isinstance(each, float)})
        results_by_text: dict[str, float | str] = {
            text: str(each) if isinstance(each, TrainingError) else each for text, each in results.items()
        }
        return results_by_text | {text: known[key] for text, key in keys.items() if key in known}

    def _read(self, reply: str) -> float | str:
        if self.mode == "rating":
            (low, high), rating = self.scale, parse_rating(reply, self.scale)
            return rating if isinstance(rating, str) else (rating - low) / (high - low)
        return parse_choice(reply, YES_NO if self.mode == "rubric" else VERDICTS)

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
