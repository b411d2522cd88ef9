"""Responses to requests from outside, ranked by rewards: all requests are generated and scored together."""

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

__all__ = ["BestOf", "GenerationRequest", "GenerationResult", "RankedResponse", "ranking_rewards"]


class GenerationRequest(NamedTuple):
    """One prompt and its sampling parameters."""

    prompt: Messages | str | tuple[int, ...]
    """A chat, text, or token ids."""
    reference: str = ""
    """Reference answer, for rewards that read it."""
    num_responses: int = 1
    """Number of sampled responses (N)."""
    is_ranked: bool = False
    """Whether rewards score and rank the responses."""
    seed: int = 0
    """In [0, 2^42); together with the run's seed it determines the samples."""
    temperature: float | None = None
    """0: greedy; None: the sampler's."""
    max_tokens: int | None = None
    """Token limit of a response; None: the sampler's."""
    stop: tuple[str, ...] = ()
    """Texts that end a response; it does not include them."""


class RankedResponse(NamedTuple):
    """One response and its score."""

    text: str
    num_tokens: int
    finish_reason: int
    """A ``FinishReason``."""
    score: float | None = None
    """Score for the ranking; None: not scored, or a reward failed."""
    rewards: Mapping[str, float] = MappingProxyType({})
    """Label -> raw value, of each reward that did not fail."""
    failures: Mapping[str, str] = MappingProxyType({})
    """Label -> reason, of each reward that failed."""


class GenerationResult(NamedTuple):
    """The responses to one request."""

    num_prompt_tokens: int
    ranked: list[RankedResponse]
    """Highest score first, responses without a score last; ties in the order of sampling."""


def ranking_rewards(rewards: Sequence[Reward], label: str | None) -> list[Reward]:
    """Return the rewards that a ranking needs, including those that other rewards read.

    Args:
        rewards: all rewards of the experiment.
        label: the reward whose raw value ranks; None: the weighted sum, which ignores rewards of weight 0.

    Raises:
        ConfigError: no reward has the label.
    """
    by_label = {each.label: each for each in rewards}
    if label is not None and label not in by_label:
        text = f"must be the label of a [[reward]], got {label!r}{did_you_mean(label, by_label) or ';'}"
        raise ConfigError(f"--reward {text} labels: {', '.join(by_label) or 'none'}.")
    needed = [each.label for each in rewards if each.weight != 0] if label is None else [label]
    for name in needed:
        needed += sorted(read_by(by_label[name], rewards) - set(needed))
    return [each for each in rewards if each.label in needed]


class BestOf:
    """Best-of-N generation: responses of a policy, ranked by rewards.

    Args:
        generator: the policy, in one process.
        reward: label of the reward that ranks; None: the weighted sum.
    """

    def __init__(self, generator: Generator, reward: str | None = None) -> None:
        self._generator, self._label = generator, reward
        self._rewards = ranking_rewards(generator.rewards, reward)
        self._vocab_size = inspect(generator.model_path).vocab_size

    def __call__(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult | Exception]:
        """Return the result of each request, in order; a failed request does not affect the others.

        A ValueError in place of a result means that the request is invalid, a TrainingError that the rewards
        failed.
        """
        results: dict[int, GenerationResult | Exception] = {}
        rollouts: dict[int, list[RolloutRequest]] = {}
        for index, request in enumerate(requests):
            try:
                rollouts[index] = self._rollout_requests(request)
            except ValueError as error:
                results[index] = error
        responses: dict[int, list[RankedResponse]] = {}
        to_score: dict[int, list[_Response]] = {}
        for index, generated in self._generate(requests, rollouts).items():
            if isinstance(generated, ValueError):
                results[index] = generated
            elif requests[index].is_ranked:
                to_score[index] = generated
            else:
                responses[index] = [_unscored(response) for response in generated]
        try:
            responses |= self._score(rollouts, to_score)
        # For example, a reward server that is down. The model server continues.
        except Exception as error:
            results |= dict.fromkeys(to_score, TrainingError(f"the rewards failed: {error_text(error)}"))
        for index, own in responses.items():
            ranked = sorted(own, key=lambda each: (each.score is None, -(each.score or 0.0)))
            results[index] = GenerationResult(len(rollouts[index][0].prompt_ids), ranked)
        return [results[index] for index in range(len(requests))]

    def _rollout_requests(self, request: GenerationRequest) -> list[RolloutRequest]:
        """Raises:
        ValueError: the prompt cannot be tokenized or is too long.
        """
        tokenizer, prompt = self._generator.tokenizer, request.prompt
        if isinstance(prompt, tuple) and prompt and isinstance(prompt[0], int):
            ids = [token for token in prompt if isinstance(token, int)]
            if max(ids) >= self._vocab_size:
                raise ValueError(f"prompt must have token ids < {self._vocab_size}, got {max(ids)}.")
            text = tokenizer.decode_prompt(ids)
        else:
            chat: Messages | str = prompt  # type: ignore[assignment]
            text = chat if isinstance(chat, str) else chat[-1]["content"]
            try:
                ids = tokenizer.encode(Prompt(chat))
            except ConfigError:
                raise
            except ValueError as error:
                raise ValueError(f"messages {error}") from error
        max_tokens = request.max_tokens
        if max_tokens is None:
            max_tokens = self._generator.sampler_settings.max_response_tokens
        limit = self._generator.max_length
        if not ids:
            raise ValueError("prompt has no tokens; give it text.")
        if len(ids) + max_tokens > limit:
            raise ValueError(
                f"the prompt has {len(ids)} tokens; with max_tokens = {max_tokens} that makes "
                f"{len(ids) + max_tokens}, more than {limit}. Reduce max_tokens, shorten the prompt, or "
                "start the server with a larger training.seq_len."
            )
        return [
            RolloutRequest(ids, request.seed, sample, text, request.reference)
            for sample in range(request.num_responses)
        ]

    def _generate(
        self, requests: Sequence[GenerationRequest], rollouts: Mapping[int, Sequence[RolloutRequest]]
    ) -> dict[int, list[_Response] | ValueError]:
        """Return the responses to each valid request, with one sampler call per set of parameters."""
        batches: dict[tuple[float | None, int | None], list[int]] = {}
        for index in rollouts:
            parameters = (requests[index].temperature, requests[index].max_tokens)
            batches.setdefault(parameters, []).append(index)
        generated: dict[int, list[_Response] | ValueError] = {}
        for (temperature, max_tokens), indices in batches.items():
            try:
                completions = self._generator.sampler.sample(
                    [rollout for index in indices for rollout in rollouts[index]],
                    step=0,
                    seed=self._generator.seed,
                    temperature=temperature or None,
                    greedy=temperature == 0,
                    max_tokens=max_tokens,
                )
            except ValueError as error:
                generated |= dict.fromkeys(indices, error)
                continue
            remaining = iter(completions)
            for index in indices:
                stop = requests[index].stop
                generated[index] = [self._apply_stop(next(remaining), stop) for _ in rollouts[index]]
        return generated

    def _apply_stop(self, completion: Completion, stop: Sequence[str]) -> _Response:
        """Return a completion cut at the first stop text, with the tokens up to the end of that text."""
        decode = self._generator.tokenizer.decode
        text = decode(completion.ids)
        starts = [text.index(each) for each in stop if each in text]
        if not starts:
            return _Response(completion, text)

        def contains_stop(count: int) -> bool:
            return any(each in decode(completion.ids[:count]) for each in stop)

        count = bisect_left(range(len(completion.ids) + 1), True, key=contains_stop)
        return _Response(completion.truncated(count, FinishReason.STOP), text[: min(starts)])

    def _score(
        self, rollouts: Mapping[int, Sequence[RolloutRequest]], responses: Mapping[int, Sequence[_Response]]
    ) -> dict[int, list[RankedResponse]]:
        """Return the responses to each request with their scores; each reward scores all of them at once."""
        flat = [response for own in responses.values() for response in own]
        if not flat:
            return {}
        texts = iter([response.text for response in flat])
        batch = collate_rollouts(
            [rollout for index in responses for rollout in rollouts[index]],
            [response.completion for response in flat],
            decode=lambda _: next(texts),
            version=self._generator.sampler.version,
        )
        scores, reasons = score_rewards(batch, self._rewards)
        key = "reward" if self._label is None else ("rewards", self._label)
        scored = []
        for row, response in enumerate(flat):
            failures = {label: failed[row] for label, failed in reasons.items() if row in failed}
            raw = {label: float(scores["rewards", label][row]) for label in reasons if label not in failures}
            score = None if failures else float(scores[key][row])
            scored.append(_unscored(response)._replace(score=score, rewards=raw, failures=failures))
        remaining = iter(scored)
        return {index: [next(remaining) for _ in own] for index, own in responses.items()}


class _Response(NamedTuple):
    completion: Completion
    text: str
    """Decoded, without the stop text that ends it."""


def _unscored(response: _Response) -> RankedResponse:
    completion = response.completion
    return RankedResponse(response.text, len(completion.ids), completion.finish_reason)
