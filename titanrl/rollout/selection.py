"""Selection of training data from scored responses: the best ones, or the best against the worst."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.protocols import FinishReason

if TYPE_CHECKING:
    from titanrl.config.rft import RFT
    from titanrl.protocols import Messages
    from titanrl.rollout.generator import ScoredResponse

__all__ = ["Selection", "identity", "select"]


class Selection(NamedTuple):
    """The training data from the responses to one prompt."""

    rows: list[dict[str, Any]]
    """Records for the source `dataset`: prompt_completion for responses, preference for pairs."""
    dropped: Counter[str]
    """Number of unwritten responses by reason: unfinished, length, least, reward, duplicate, surplus."""


def select(
    settings: RFT, prompt: Messages | str, responses: Sequence[ScoredResponse], written: set[str]
) -> Selection:
    """Return the selected responses to one prompt, best first; ties keep their order.

    Args:
        settings: the [rft] table.
        prompt: the prompt.
        responses: its scored responses.
        written: identities of the rows written so far; the new ones are added.
    """
    dropped: Counter[str] = Counter()
    usable, good = [], []
    for response in responses:
        if reason := _unusable(settings, response):
            dropped[reason] += 1
            continue
        usable.append(response)
        if reason := _rejected(settings, response):
            dropped[reason] += settings.write == "responses"  # It may still be the rejected one of a pair.
        else:
            good.append(response)
    good.sort(key=lambda response: _value(settings, response), reverse=True)
    rows: list[dict[str, Any]] = []
    make = _pairs if settings.write == "pairs" else _completions
    for row in make(settings, prompt, good, usable):
        if len(rows) == settings.max_per_prompt:
            dropped["surplus"] += 1
        elif settings.dedup and identity(row) in written:
            dropped["duplicate"] += 1
        else:
            rows.append(row)
            written.add(identity(row))
    return Selection(rows, +dropped)


def identity(row: Mapping[str, Any]) -> str:
    """Return the identity of a row for deduplication: its texts without surrounding white space."""
    texts = [row[key] for key in ("prompt", "completion", "chosen", "rejected") if key in row]
    return json.dumps([_stripped(text) for text in texts])


def _stripped(text: Any) -> Any:
    return text.strip() if isinstance(text, str) else [_stripped(message["content"]) for message in text]


def _value(settings: RFT, response: ScoredResponse) -> float:
    return response.reward if settings.reward is None else response.rewards[settings.reward]


def _unusable(settings: RFT, response: ScoredResponse) -> str:
    """Return the reason why a response is not used at all; empty if it is."""
    if response.finish_reason != FinishReason.STOP and not settings.include_truncated:
        return "unfinished"
    too_long = settings.max_tokens is not None and response.tokens > settings.max_tokens
    return "length" if too_long or response.tokens < settings.min_tokens else ""


def _rejected(settings: RFT, response: ScoredResponse) -> str:
    """Return the reason why a response is not good enough; empty if it is."""
    if any(response.rewards[label] < least for label, least in settings.min_rewards.items()):
        return "least"
    return "reward" if _value(settings, response) < settings.min_reward else ""


def _completions(
    settings: RFT, prompt: Messages | str, good: Sequence[ScoredResponse], usable: Sequence[ScoredResponse]
) -> Iterator[dict[str, Any]]:
    del usable
    for response in good:
        texts = {"prompt": _plain(prompt), "completion": _turn(prompt, response)}
        yield {**texts, "reward": _value(settings, response)}


def _pairs(
    settings: RFT, prompt: Messages | str, good: Sequence[ScoredResponse], usable: Sequence[ScoredResponse]
) -> Iterator[dict[str, Any]]:
    """Yield the best good response against the worst of all, if they differ enough."""
    if not good:
        return
    best, worst = good[0], min(usable, key=lambda response: _value(settings, response))
    high, low = _value(settings, best), _value(settings, worst)
    if high > low and high - low >= settings.min_margin:
        texts = {"prompt": _plain(prompt), "chosen": _turn(prompt, best), "rejected": _turn(prompt, worst)}
        yield {**texts, "margin": high - low, "chosen_reward": high, "rejected_reward": low}


def _plain(prompt: Messages | str) -> Any:
    return prompt if isinstance(prompt, str) else list(prompt)


def _turn(prompt: Messages | str, response: ScoredResponse) -> Any:
    """Return a response in the form of its prompt: text, or an assistant message."""
    return response.text if isinstance(prompt, str) else [{"role": "assistant", "content": response.text}]
