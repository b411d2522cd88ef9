"""Score of a trained reward model, in this process or from a server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from titanrl.components.rewards.http_json import MalformedReply, ServerTimeout, request_json
from titanrl.components.rewards.reward_model.scorer import BATCH_TOKENS, ModelFacts, facts_of, scorer
from titanrl.errors import ConfigError, TrainingError
from titanrl.ops.prefix import loss_lengths
from titanrl.ops.scores import fill_missing_scores
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["RewardModel"]

TIMEOUT_SECONDS, METADATA_TIMEOUT_SECONDS = 60.0, 5.0


@register("reward", "reward_model")
@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModel:
    """Normalised score of a trained reward model, ``(s - mean) / std``.

    s is the score at the row's last loss token. The model reads the token ids of prompt and response up to
    that token, as in its training, so it needs the policy's tokenizer. With `path`, every rank that has
    rows holds a frozen copy of the model on its device. With `url`, a server computes the scores (`titanrl
    serve-reward`), for models that do not fit beside the policy. A row without loss tokens has no score.

    A model with several heads returns their weighted sum.

    Source: InstructGPT 2203.02155.
    """

    path: str | None = None
    """Folder of a ...ForSequenceClassification model, as `titanrl export` writes it; give either path or
    url."""
    url: str | None = None
    """Address of a server, such as `http://node7:8100`; give either url or path."""
    heads: Annotated[dict[str, float], Range("(-inf, inf)")] = field(default_factory=dict)
    """Weight of each head by its name (id2label); required for a model with several heads."""
    mean: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Subtracted from the score: its mean over good responses, or `eval/score_mean` of the model's
    training."""
    std: Annotated[float, Range("(0, inf)")] = 1.0
    """Divisor of the difference: `eval/score_std` of the model's training."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Precision of the model's weights and computation; omitted: float32. With path only."""
    batch_tokens: Annotated[int | None, Range("[1, inf)")] = None
    """Tokens per forward pass, padding included; omitted: 8192. With path only."""
    offload: bool | None = None
    """Keep the weights in CPU memory and copy them to the GPU only for scoring; no effect on a CPU;
    omitted: false. With path only."""
    timeout_seconds: Annotated[float | None, Range("(0, inf)")] = None
    """Time limit for the server's reply to a batch, all attempts included, seconds; omitted: 60. With url
    only."""
    in_keys: ClassVar[tuple[str, ...]] = ("input_ids", "loss_mask")

    def __post_init__(self) -> None:
        if (self.path is None) == (self.url is None):
            got = "neither" if self.path is None else "both"
            raise ValueError(f"path or url must be given, got {got}; give the location of the reward model.")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {self.url!r}.")
        unused = ("dtype", "batch_tokens", "offload") if self.path is None else ("timeout_seconds",)
        for key in unused:
            if getattr(self, key) is not None:
                given = "url" if self.path is None else "path"
                raise ValueError(f"{key} is not used with {given}, got {getattr(self, key)!r}; leave it out.")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32; 0 for a row without loss tokens."""
        return fill_missing_scores(self.scores(batch), 0.0)

    def scores(self, batch: TensorDict) -> list[float | str]:
        """Returns the score of each row, or the reason why it has none.

        A row without loss tokens has none, and no row has one if the server's reply is malformed or late.

        Raises:
            ConfigError: the model does not exist.
            TrainingError: the server cannot be reached, or rejects the rows.
        """
        lengths = loss_lengths(batch["loss_mask"]).tolist()
        rows = [ids[:length] for ids, length in zip(batch["input_ids"].tolist(), lengths, strict=True)]
        nonempty = [index for index, row in enumerate(rows) if row]
        scores: list[float | str] = ["the row has no loss tokens"] * len(rows)
        if nonempty:
            try:
                heads, head_scores = self._score([rows[index] for index in nonempty])
            except (MalformedReply, ServerTimeout) as error:
                for index in nonempty:
                    scores[index] = str(error)
                return scores
            weights = self.weights(heads)
            for index, parts in zip(nonempty, head_scores, strict=True):
                score = math.fsum(weight * part for weight, part in zip(weights, parts, strict=True))
                scores[index] = (score - self.mean) / self.std
        return scores

    def weights(self, heads: Sequence[str]) -> list[float]:
        """Returns the weight of each of the model's heads.

        Raises:
            ConfigError: the key `heads` does not name exactly these heads.
        """
        if not self.heads and len(heads) == 1:
            return [1.0]
        if set(self.heads) == set(heads):
            return [self.heads[name] for name in heads]
        raise ConfigError(
            f"reward 'reward_model' heads must give a weight to each head of {self.path or self.url} "
            f"({', '.join(heads)}), got {', '.join(self.heads) or 'none'}; a weight of 0 ignores a head."
        )

    def facts(self) -> ModelFacts:
        """Returns the model's metadata, from its files or its server; waits at most 5 s for a server.

        Raises:
            ConfigError: the model does not exist.
            TrainingError: the server does not reply, or its reply is malformed.
        """
        if self.path is not None:
            return facts_of(self.path)
        reply = self._request("model", None, METADATA_TIMEOUT_SECONDS)
        try:
            return ModelFacts(**{**reply, "heads": tuple(reply["heads"])})
        except (TypeError, KeyError):
            raise TrainingError(self._malformed(reply)) from None

    def _score(self, rows: list[list[int]]) -> tuple[Sequence[str], list[list[float]]]:
        """Returns the names of the heads, and each row's score of every head."""
        if self.path is not None:
            tokens = self.batch_tokens or BATCH_TOKENS
            model = scorer(self.path, self.dtype or "float32", tokens, bool(self.offload))
            return model.facts.heads, model(rows)
        reply = self._request("score", {"input_ids": rows}, self.timeout_seconds or TIMEOUT_SECONDS)
        try:
            heads, scores = [str(name) for name in reply["heads"]], reply["scores"]
            parts = [[float(part) for part in row] for row in scores]
        except (TypeError, KeyError, ValueError, OverflowError):
            raise MalformedReply(self._malformed(reply)) from None
        if len(parts) != len(rows) or any(len(row) != len(heads) for row in parts):
            raise MalformedReply(self._malformed(reply))
        return heads, parts

    def _request(self, resource: str, payload: Any, seconds: float) -> Any:
        return request_json(f"{str(self.url).rstrip('/')}/{resource}", payload, timeout_seconds=seconds)

    def _malformed(self, reply: Any) -> str:
        return (
            f"{self.url} is not a reward server of this version: it replied {str(reply)[:200]!r}; start one "
            "with `titanrl serve-reward`."
        )
