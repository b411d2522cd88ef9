"""Answers to prompts from outside, the best of several first: sampled together, judged together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from titanrl.data.collate import collate_rollouts
from titanrl.errors import ConfigError, TrainingError, did_you_mean
from titanrl.models import inspect
from titanrl.protocols import FinishReason, Prompt, RolloutRequest
from titanrl.rollout.rewards import read_by, score_rewards
from titanrl.runtime.worker import error_text

if TYPE_CHECKING:
    from titanrl.config.tables import Reward
    from titanrl.protocols import Completion, Messages
    from titanrl.rollout.generator import Generator

__all__ = ["GenerationResult", "BestOf", "RankedResponse", "GenerationRequest", "ranking_rewards"]


class GenerationRequest(NamedTuple):
    """One prompt, and how it is to be answered."""

    prompt: Messages | str | tuple[int, ...]
    """A chat, text, or token ids."""
    answer: str = ""
    """Reference answer, for rewards that read it."""
    num: int = 1
    """Answers sampled (N)."""
    is_judged: bool = False
    """Whether rewards score the answers and rank them."""
    seed: int = 0
    """In [0, 2^42); with the run's seed it decides what is sampled."""
    temperature: float | None = None
    """0: greedy; None: the sampler's."""
    max_tokens: int | None = None
    """Longest answer; None: the sampler's."""
    stop: tuple[str, ...] = ()
    """Texts before the first of which an answer ends."""


class RankedResponse(NamedTuple):
    """One answer and what it is worth."""

    text: str
    tokens: int
    finish_reason: int
    """A ``FinishReason``."""
    score: float | None = None
    """By which it is ranked; None: it was not judged, or a reward could not."""
    rewards: Mapping[str, float] = MappingProxyType({})
    """Label -> raw value, of the rewards that could judge."""
    failures: Mapping[str, str] = MappingProxyType({})
    """Label -> why a reward could not."""


class GenerationResult(NamedTuple):
    """What came of one question."""

    prompt_tokens: int
    ranked: list[RankedResponse]
    """The best first, those without a score last, else in the order in which they were sampled."""


def ranking_rewards(rewards: Sequence[Reward], label: str | None) -> list[Reward]:
    """Returns the rewards that are asked to rank by one of them, or by the weighted sum, those they read too.

    Args:
        label: of the one whose raw value ranks; None: the sum, to which a weight of 0 adds nothing.

    Raises:
        ConfigError: there is no such reward.
    """
    known = {each.label: each for each in rewards}
    if label is not None and label not in known:
        text = f"must be the label of a [[reward]], got {label!r}{did_you_mean(label, known) or ';'}"
        raise ConfigError(f"--reward {text} labels: {', '.join(known) or 'none'}.")
    wanted = [each.label for each in rewards if each.weight != 0] if label is None else [label]
    for name in wanted:
        wanted += sorted(read_by(known[name], rewards) - set(wanted))
    return [each for each in rewards if each.label in wanted]


class BestOf:
    """Answers questions with a policy, all that it is given together.

    Args:
        host: the policy, of one process. reward: label of the reward that ranks; None: the weighted sum.
    """

    def __init__(self, host: Generator, reward: str | None = None) -> None:
        self._host, self._label = host, reward
        self._judges = ranking_rewards(host.rewards, reward)
        self._vocab_size = inspect(host.model_path).vocab_size

    def __call__(self, questions: Sequence[GenerationRequest]) -> list[GenerationResult | Exception]:
        """Returns what came of each question; the others do not suffer from one that cannot be answered.

        A ValueError in its place says that the question is at fault, a TrainingError that the rewards are.
        """
        results: dict[int, GenerationResult | Exception] = {}
        rows: dict[int, list[RolloutRequest]] = {}
        for number, question in enumerate(questions):
            try:
                rows[number] = self._rows(question)
            except ValueError as error:
                results[number] = error
        candidates: dict[int, list[RankedResponse]] = {}
        judged: dict[int, list[_Answer]] = {}
        for number, found in self._sampled(questions, rows).items():
            if isinstance(found, ValueError):
                results[number] = found
            elif questions[number].is_judged:
                judged[number] = found
            else:
                candidates[number] = [_candidate(answer) for answer in found]
        try:
            candidates |= self._judged(rows, judged)
        # Such as that of a server which is gone; that is no reason to end this one.
        except Exception as error:
            results |= dict.fromkeys(judged, TrainingError(f"the rewards failed: {error_text(error)}"))
        for number, own in candidates.items():
            ranked = sorted(own, key=lambda each: (each.score is None, -(each.score or 0.0)))
            results[number] = GenerationResult(len(rows[number][0].prompt_ids), ranked)
        return [results[number] for number in range(len(questions))]

    def _rows(self, question: GenerationRequest) -> list[RolloutRequest]:
        """Raises:
        ValueError: a prompt that cannot be tokenized, or is too long.
        """
        tokens, prompt = self._host.tokenizer, question.prompt
        if isinstance(prompt, tuple) and prompt and isinstance(prompt[0], int):
            ids = [token for token in prompt if isinstance(token, int)]
            if max(ids) >= self._vocab_size:
                raise ValueError(f"prompt must have token ids < {self._vocab_size}, got {max(ids)}.")
            text = tokens.decode_prompt(ids)
        else:
            chat: Messages | str = prompt  # type: ignore[assignment]
            text = chat if isinstance(chat, str) else chat[-1]["content"]
            try:
                ids = tokens.encode(Prompt(chat))
            except ConfigError:
                raise
            except ValueError as error:
                raise ValueError(f"messages {error}") from error
        sampler = self._host.sampler_settings
        assert sampler is not None
        longest = sampler.max_response_tokens if question.max_tokens is None else question.max_tokens
        room = self._host.max_length
        if not ids:
            raise ValueError("prompt has no tokens; give it text.")
        if len(ids) + longest > room:
            raise ValueError(
                f"the prompt has {len(ids)} tokens; with max_tokens = {longest} that makes "
                f"{len(ids) + longest}, more than {room}. Ask for fewer, shorten the prompt, or start the "
                "server with a larger training.seq_len."
            )
        return [
            RolloutRequest(ids, question.seed, sample, text, question.answer)
            for sample in range(question.num)
        ]

    def _sampled(
        self, questions: Sequence[GenerationRequest], rows: Mapping[int, Sequence[RolloutRequest]]
    ) -> dict[int, list[_Answer] | ValueError]:
        """Returns the answers to each question that has rows; those alike are sampled in one call."""
        alike: dict[tuple[float | None, int | None], list[int]] = {}
        for number in rows:
            alike.setdefault((questions[number].temperature, questions[number].max_tokens), []).append(number)
        found: dict[int, list[_Answer] | ValueError] = {}
        for (temperature, max_tokens), numbers in alike.items():
            try:
                samples = self._host.sampler.sample(
                    [row for number in numbers for row in rows[number]], step=0, seed=self._host.seed,
                    temperature=temperature or None, greedy=temperature == 0, max_tokens=max_tokens,
                )  # fmt: skip
            except ValueError as error:
                found |= dict.fromkeys(numbers, error)
                continue
            left = iter(samples)
            for number in numbers:
                found[number] = [self._ended(next(left), questions[number].stop) for _ in rows[number]]
        return found

    def _ended(self, sample: Completion, stop: Sequence[str]) -> _Answer:
        """Returns an answer up to the first of some texts, with the tokens that it took to see that."""
        decode = self._host.tokenizer.decode
        text = decode(sample.ids)
        places = [text.index(each) for each in stop if each in text]
        if not places:
            return _Answer(sample, text)

        def is_ended(count: int) -> bool:
            return any(each in decode(sample.ids[:count]) for each in stop)

        count = bisect_left(range(len(sample.ids) + 1), True, key=is_ended)
        return _Answer(sample.truncated(count, FinishReason.STOP), text[: min(places)])

    def _judged(
        self, rows: Mapping[int, Sequence[RolloutRequest]], answers: Mapping[int, Sequence[_Answer]]
    ) -> dict[int, list[RankedResponse]]:
        """Returns the answers to each question with what the rewards say, which are asked once about all."""
        flat = [answer for own in answers.values() for answer in own]
        if not flat:
            return {}
        texts = iter([answer.text for answer in flat])
        batch = collate_rollouts(
            [row for number in answers for row in rows[number]], [answer.sample for answer in flat],
            decode=lambda _: next(texts), version=self._host.sampler.version,
        )  # fmt: skip
        scores, reasons = score_rewards(batch, self._judges)
        key = "reward" if self._label is None else ("rewards", self._label)
        candidates = []
        for row, answer in enumerate(flat):
            why = {label: failed[row] for label, failed in reasons.items() if row in failed}
            raw = {label: float(scores["rewards", label][row]) for label in reasons if label not in why}
            score = None if why else float(scores[key][row])
            candidates.append(_candidate(answer)._replace(score=score, rewards=raw, failures=why))
        left = iter(candidates)
        return {number: [next(left) for _ in own] for number, own in answers.items()}


class _Answer(NamedTuple):
    sample: Completion
    text: str
    """Of its tokens, without a stop text that ends it."""


def _candidate(answer: _Answer) -> RankedResponse:
    return RankedResponse(answer.text, len(answer.sample.ids), answer.sample.finish_reason)
