"""Scores of a trained process reward model, one per step of the response, at the step's last token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import torch

from titanrl.components.rewards.reward_model.scorer import BATCH_TOKENS, ModelFacts, facts_of, scorer
from titanrl.errors import ConfigError
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["ProcessRewardModel", "Step", "steps_of"]


class Step(NamedTuple):
    """One step of a response, as label positions of its row."""

    read: int
    """Position at which the model has read the step and nothing after it."""
    last: int
    """The step's last response token, which gets its reward."""


@register("reward", "process_reward_model")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRewardModel:
    """Reward of each step by a process reward model: ``sigmoid(s_k) - baseline``, at the step's last token.

    s_k is the model's score where it has read step k and nothing after it, as in its training (preset `prm`).
    Steps are the texts between separators that are not blank; where a token contains the end of a step and
    the begin of its separator, the score has read the whole token. With p_k = sigmoid(s_k) of K steps,
    `credit` says which tokens get which reward:

        sum        p_k - baseline                 at the end of each step
        mean       (p_k - baseline) / K           at the end of each step
        min        min_k p_k - baseline           at the end of the worst step
        product    prod_k p_k - baseline          at the end of the last step
        last       p_K - baseline                 at the end of the last step

    The value of a row is the sum over its tokens. With `sum`, more steps earn more: a baseline, `mean` or
    `min` prevents that. The model reads token ids, so it needs the policy's tokenizer. A row without a step
    has no score.

    Source: process rewards, arXiv 2305.20050; min: PURE, arXiv 2504.15275.
    """

    path: str
    """Folder of a ...ForSequenceClassification model with one label, as `titanrl export` writes it."""
    separator: str = "\n"
    """Text between steps, as in the model's training data."""
    credit: Literal["sum", "mean", "min", "product", "last"] = "mean"
    """Reward of each step."""
    baseline: Annotated[float, Range("[0, 1]")] = 0.0
    """Probability that earns nothing."""
    dtype: Literal["bfloat16", "float32"] = "float32"
    """Precision of the model's weights and computation."""
    batch_tokens: Annotated[int, Range("[1, inf)")] = BATCH_TOKENS
    """Tokens per forward pass, padding included."""
    offload: bool = False
    """Keep the weights in CPU memory and copy them to the GPU only for scoring; no effect on a CPU."""
    in_keys: ClassVar[tuple[str, ...]] = ("input_ids", "labels", "loss_mask")
    per_token: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.separator:
            raise ValueError("separator must not be empty, got ''; it divides a response into steps.")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n, L] float32, 0 where no step ends; NaN at the last response token of a row without
        steps.

        Raises:
            ConfigError: the model does not exist, or has several heads.
        """
        pieces = _pieces(self.path)
        mask, rewards = batch["loss_mask"], torch.zeros(batch["loss_mask"].shape)
        rows = []
        for labels, own in zip(batch["labels"], mask, strict=True):
            texts = [pieces(token) for token in labels[own].tolist()]
            rows.append(steps_of(texts, own.nonzero().flatten().tolist(), self.separator))
        filled = [row for row, steps in enumerate(rows) if steps]
        for row in set(range(len(rows))) - set(filled):
            rewards[row, mask[row].nonzero().flatten()[-1:]] = torch.nan
        if not filled:
            return rewards
        model = scorer(self.path, self.dtype, self.batch_tokens, self.offload)
        self.weights(model.facts.heads)
        ids = [batch["input_ids"][row, : rows[row][-1].read + 1].tolist() for row in filled]
        scores = model.scores_at(ids, [[step.read for step in rows[row]] for row in filled])
        for row, values in zip(filled, scores, strict=True):
            probabilities = torch.tensor([value[0] for value in values]).sigmoid()
            for step, reward in zip(rows[row], self._credits(probabilities), strict=True):
                rewards[row, step.last] += reward
        return rewards

    def _credits(self, probabilities: torch.Tensor) -> list[float]:
        values, count = probabilities.tolist(), len(probabilities)
        earned = [0.0] * count
        if self.credit == "sum":
            return [value - self.baseline for value in values]
        if self.credit == "mean":
            return [(value - self.baseline) / count for value in values]
        if self.credit == "min":
            earned[values.index(min(values))] = min(values) - self.baseline
        else:
            earned[-1] = (math.prod(values) if self.credit == "product" else values[-1]) - self.baseline
        return earned

    def facts(self) -> ModelFacts:
        """Returns the model's metadata.

        Raises:
            ConfigError: the model does not exist.
        """
        return facts_of(self.path)

    def weights(self, heads: Sequence[str]) -> list[float]:
        """Returns the weight of the model's only head.

        Raises:
            ConfigError: it has several.
        """
        if len(heads) == 1:
            return [1.0]
        raise ConfigError(
            f"reward 'process_reward_model' needs a model with one head, got {', '.join(heads)} of "
            f"{self.path}; train one by the preset algorithms/prm.toml."
        )


def steps_of(pieces: Sequence[str], positions: Sequence[int], separator: str) -> list[Step]:
    """Returns the steps of a response.

    Args:
        pieces: text of each response token.
        positions: label position of each response token.
        separator: text between steps.
    """
    text, starts = "".join(pieces), [0]
    for piece in pieces:
        starts.append(starts[-1] + len(piece))
    steps: list[Step] = []
    begin, token = 0, 0
    while begin <= len(text) and positions:
        end = text.find(separator, begin)
        is_final = end < 0
        content = text[begin:] if is_final else text[begin:end]
        if is_final:
            if content.strip():
                steps.append(Step(positions[-1], positions[-1]))
            break
        if content.strip():
            # The first token that begins at or after the separator has read all of the step.
            while token < len(pieces) and starts[token] < end:
                token += 1
            read = positions[min(token, len(pieces) - 1)]
            steps.append(Step(read, positions[max(token - 1, 0)]))
        begin = end + len(separator)
    return steps


@cache
def _pieces(folder: str) -> Any:
    """Returns a cached function: token id -> its text; empty for special tokens, such as the end token."""
    from tokenizers import Tokenizer

    facts_of(folder)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")

    @cache
    def piece(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=True))

    return piece
