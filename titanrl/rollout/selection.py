"""Which of the answers to a prompt become training data: the best ones, or the best against the worst."""

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
    """What the answers to one prompt give."""

    rows: list[dict[str, Any]]
    """Records that the source `dataset` reads: prompt_completion for answers, preference for pairs."""
    dropped: Counter[str]
    """Why answers were not written: unfinished, length, least, reward, duplicate, surplus -> how many."""


def select(
    settings: RFT, prompt: Messages | str, answers: Sequence[ScoredResponse], seen: set[str]
) -> Selection:
    """Returns what is kept of the answers to one prompt, the best first, equally good ones in their order.

    Args:
        seen: identities of the rows written so far; those of the new ones are added.
    """
    dropped: Counter[str] = Counter()
    usable, good = [], []
    for answer in answers:
        if reason := _why_unusable(settings, answer):
            dropped[reason] += 1
            continue
        usable.append(answer)
        if reason := _why_unworthy(settings, answer):
            dropped[reason] += settings.write == "responses"  # It may still be the rejected one of a pair.
        else:
            good.append(answer)
    good.sort(key=lambda answer: _value(settings, answer), reverse=True)
    rows: list[dict[str, Any]] = []
    make = _pairs if settings.write == "pairs" else _completions
    for row in make(settings, prompt, good, usable):
        if len(rows) == settings.max_per_prompt:
            dropped["surplus"] += 1
        elif settings.dedup and identity(row) in seen:
            dropped["duplicate"] += 1
        else:
            rows.append(row)
            seen.add(identity(row))
    return Selection(rows, +dropped)


def identity(row: Mapping[str, Any]) -> str:
    """Returns what rows share that dedup takes for one: their texts, white space around them left out."""
    texts = [row[key] for key in ("prompt", "completion", "chosen", "rejected") if key in row]
    return json.dumps([_stripped(text) for text in texts])


def _stripped(text: Any) -> Any:
    return text.strip() if isinstance(text, str) else [_stripped(message["content"]) for message in text]


def _value(settings: RFT, answer: ScoredResponse) -> float:
    return answer.reward if settings.reward is None else answer.rewards[settings.reward]


def _why_unusable(settings: RFT, answer: ScoredResponse) -> str:
    if answer.finish_reason != FinishReason.STOP and not settings.include_truncated:
        return "unfinished"
    too_long = settings.max_tokens is not None and answer.tokens > settings.max_tokens
    return "length" if too_long or answer.tokens < settings.min_tokens else ""


def _why_unworthy(settings: RFT, answer: ScoredResponse) -> str:
    if any(answer.rewards[label] < least for label, least in settings.min_rewards.items()):
        return "least"
    return "reward" if _value(settings, answer) < settings.min_reward else ""


def _completions(
    settings: RFT, prompt: Messages | str, good: Sequence[ScoredResponse], usable: Sequence[ScoredResponse]
) -> Iterator[dict[str, Any]]:
    del usable
    for answer in good:
        texts = {"prompt": _plain(prompt), "completion": _turn(prompt, answer)}
        yield {**texts, "reward": _value(settings, answer)}


def _pairs(
    settings: RFT, prompt: Messages | str, good: Sequence[ScoredResponse], usable: Sequence[ScoredResponse]
) -> Iterator[dict[str, Any]]:
    """Yields the best answer that is good against the worst one of all, if they differ enough."""
    if not good:
        return
    best, worst = good[0], min(usable, key=lambda answer: _value(settings, answer))
    high, low = _value(settings, best), _value(settings, worst)
    if high > low and high - low >= settings.min_margin:
        texts = {"prompt": _plain(prompt), "chosen": _turn(prompt, best), "rejected": _turn(prompt, worst)}
        yield {**texts, "margin": high - low, "chosen_reward": high, "rejected_reward": low}


def _plain(prompt: Messages | str) -> Any:
    return prompt if isinstance(prompt, str) else list(prompt)


def _turn(prompt: Messages | str, answer: ScoredResponse) -> Any:
    """Returns an answer as its prompt is written: as text, or as the assistant's message."""
    return answer.text if isinstance(prompt, str) else [{"role": "assistant", "content": answer.text}]
