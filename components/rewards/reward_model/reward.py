"""The score of a trained reward model, in this process or from a server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from titanrl.components.rewards.http_json import ask
from titanrl.components.rewards.reward_model.scorer import BATCH_TOKENS, ModelFacts, facts_of, scorer
from titanrl.errors import ConfigError, TrainingError, check_range
from titanrl.ops.prefix import trained_lengths
from titanrl.ops.scores import filled
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["RewardModel"]

DEADLINE_SECONDS, LOOK_SECONDS = 60.0, 5.0


@register("reward", "reward_model")
@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModel:
    """Returns ``(s - mean) / std``, s the score of a reward model at the row's last trainable token.

    The model reads the token ids of prompt and answer as they are, up to the last trainable one, as it did
    in training: so it needs the policy's tokenizer. With `path` every rank with rows of its own holds a
    frozen copy of the model on its device. With `url` a server scores, `titanrl serve-reward`: for models
    that do not fit beside the policy. A row without trainable token fails.

    A model of several heads gives their weighted sum.

    Source: InstructGPT 2203.02155.
    """

    path: str | None = None
    """Folder of a ...ForSequenceClassification, as `titanrl export` writes it; either this or url."""
    url: str | None = None
    """Address of a server, such as `http://node7:8100`; either this or path."""
    heads: dict[str, float] = field(default_factory=dict)
    """Weight of each head in the score, by its name (id2label); needed for a model of several."""
    mean: float = 0.0
    """What is subtracted from the score: its mean over good answers, or `eval/score_mean` of its training."""
    std: float = 1.0
    """What the difference is divided by, > 0: `eval/score_std` of its training."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Precision of the model's weights and computation; omitted: float32. With path only."""
    batch_tokens: int | None = None
    """Tokens that go through the model at a time, padding included, >= 1; omitted: 8192. With path only."""
    offload: bool | None = None
    """Whether the weights wait in CPU memory and come to the GPU only while answers are scored; on a CPU they
    are there anyway; omitted: false. With path only."""
    timeout_seconds: float | None = None
    """Longest wait for the server's answer to a batch, with all tries, seconds, > 0; omitted: 60. With url
    only."""
    in_keys: ClassVar[tuple[str, ...]] = ("input_ids", "loss_mask")

    def __post_init__(self) -> None:
        if (self.path is None) == (self.url is None):
            got = "neither" if self.path is None else "both"
            raise ValueError(f"path or url must be given, got {got}; say where the reward model is.")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {self.url!r}.")
        unused = ("dtype", "batch_tokens", "offload") if self.path is None else ("timeout_seconds",)
        for key in unused:
            if getattr(self, key) is not None:
                given = "url" if self.path is None else "path"
                raise ValueError(f"{key} is not used with {given}, got {getattr(self, key)!r}; leave it out.")
        check_range(self, "mean", "(-inf, inf)")
        check_range(self, "std", "(0, inf)")
        check_range(self, "batch_tokens", "[1, inf)")
        check_range(self, "timeout_seconds", "(0, inf)")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32; 0 for a row without trainable token."""
        return filled(self.scores(batch), 0.0)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns one score a row, or why it has none: no trainable token.

        Raises:
            ConfigError: no such model. TrainingError: the server does not answer, or not as it should.
        """
        lengths = trained_lengths(batch["loss_mask"]).tolist()
        rows = [ids[:length] for ids, length in zip(batch["input_ids"].tolist(), lengths, strict=True)]
        live = [number for number, row in enumerate(rows) if row]
        scores: list[float | str] = ["no token of the row is trainable"] * len(rows)
        if live:
            heads, found = self._asked([rows[each] for each in live])
            weights = self.weights(heads)
            for number, parts in zip(live, found, strict=True):
                score = math.fsum(weight * part for weight, part in zip(weights, parts, strict=True))
                scores[number] = (score - self.mean) / self.std
        return scores

    def weights(self, heads: Sequence[str]) -> list[float]:
        """Returns the weight of each of the model's heads.

        Raises:
            ConfigError: they are others than those of the key `heads`.
        """
        if not self.heads and len(heads) == 1:
            return [1.0]
        if set(self.heads) == set(heads):
            return [self.heads[name] for name in heads]
        raise ConfigError(
            f"reward 'reward_model' heads must weigh those of {self.path or self.url}: {', '.join(heads)}, "
            f"got {', '.join(self.heads) or 'none'}; give each a weight, 0 for one that shall not count."
        )

    def facts(self) -> ModelFacts:
        """Returns what the model's files say, wherever they are; waits for a server no longer than 5 s.

        Raises:
            ConfigError: no such model. TrainingError: the server does not answer, or not as it should.
        """
        if self.path is not None:
            return facts_of(self.path)
        answer = self._ask("model", None, LOOK_SECONDS)
        try:
            return ModelFacts(**{**answer, "heads": tuple(answer["heads"])})
        except (TypeError, KeyError):
            raise TrainingError(self._foreign(answer)) from None

    def _asked(self, rows: list[list[int]]) -> tuple[Sequence[str], list[list[float]]]:
        """Returns the names of the heads, and what they give to each row."""
        if self.path is not None:
            tokens = self.batch_tokens or BATCH_TOKENS
            model = scorer(self.path, self.dtype or "float32", tokens, bool(self.offload))
            return model.facts.heads, model(rows)
        answer = self._ask("score", {"input_ids": rows}, self.timeout_seconds or DEADLINE_SECONDS)
        try:
            heads, scores = answer["heads"], answer["scores"]
            if len(scores) == len(rows):
                return heads, scores
        except (TypeError, KeyError):
            pass
        raise TrainingError(self._foreign(answer))

    def _ask(self, what: str, body: Any, seconds: float) -> Any:
        return ask(f"{str(self.url).rstrip('/')}/{what}", body, timeout_seconds=seconds)

    def _foreign(self, answer: Any) -> str:
        return (
            f"{self.url} is no reward server of this version: it answers {str(answer)[:200]!r}; start one "
            "with `titanrl serve-reward`."
        )
