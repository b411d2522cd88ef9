"""The batch: every key's shape, dtype, writer and meaning, and the check that runs at each stage border."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from titanrl.errors import SchemaError, did_you_mean

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["KEYS", "STAGES", "Key", "Stage", "check", "key_name"]

Stage = Literal["sample", "score", "estimate", "weigh", "update"]
STAGES: tuple[Stage, ...] = ("sample", "score", "estimate", "weigh", "update")
"""The stages of one step, in order. Offline, a source writes what `sample` writes."""

BatchKey = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the batch."""

    shape: Literal["[N]", "[N, L]", "[N, L, K]"]
    dtype: Literal["int64", "int32", "int8", "bool", "float32", "text"]
    writer: Stage
    meaning: str
    role: str | None = None
    """Table that must exist for the key to be written: ``reference``, ``critic``, ``teacher``."""
    zero_where_masked: bool = False
    finite: bool = False
    """Whether trainable places (or rows) must be finite."""


KEYS: dict[BatchKey, Key] = {
    "input_ids": Key("[N, L]", "int64", "sample", "raw[:-1], right-padded"),
    "labels": Key("[N, L]", "int64", "sample", "raw[1:], right-padded; position t scores labels[:, t]"),
    "loss_mask": Key("[N, L]", "bool", "sample", "true iff labels[t] was sampled by the policy"),
    "sampler_logprob": Key("[N, L]", "float32", "sample", "log-prob under the distribution sampled from"),
    "policy_version": Key("[N]", "int32", "sample", "weights at the first sampled token"),
    "group_id": Key("[N]", "int64", "sample", "rows of one prompt, or one preference pair; contiguous"),
    "row_id": Key("[N]", "int64", "sample", "number of the row in its step, over all ranks"),
    "finish_reason": Key("[N]", "int8", "sample", "0 stop, 1 length, 2 abort"),
    "agent_id": Key("[N]", "int64", "sample", "agent of a multi-agent episode"),
    "baseline_reward": Key("[N]", "float32", "sample", "reward of the greedy answer to the same prompt"),
    "margin": Key("[N]", "float32", "sample", "human margin of a preference pair, equal on its two rows"),
    "head_id": Key("[N]", "int64", "sample", "value head that the labels are about; -1: the weighted sum"),
    ("text", "prompt"): Key("[N]", "text", "sample", "prompt as text"),
    ("text", "response"): Key("[N]", "text", "sample", "response as text, special tokens left out"),
    ("text", "answer"): Key("[N]", "text", "sample", "reference answer, or the scorer's JSON"),
    "reward": Key("[N]", "float32", "score", "weighted sum of the rewards; NaN marks an unscored row"),
    "old_logprob": Key("[N, L]", "float32", "score", "trainer's log-probs before the update", finite=True),
    "old_entropy": Key("[N, L]", "float32", "score", "policy's entropy before the update, nats", finite=True),
    "sum_pi_squared": Key("[N, L]", "float32", "score", "sum over the vocabulary of pi_old^2", finite=True),
    "ref_logprob": Key("[N, L]", "float32", "score", "log-probs of the anchor", "reference", finite=True),
    "teacher_logprob": Key("[N, L]", "float32", "score", "log-probs of the teacher", "teacher", finite=True),
    "candidate_ids": Key("[N, L, K]", "int64", "score", "teacher's likeliest token ids", "teacher"),
    "candidate_logprob": Key("[N, L, K]", "float32", "score", "teacher's log-probs of them", "teacher"),
    "value": Key("[N, L]", "float32", "score", "critic's values before the update", "critic", finite=True),
    "final_value": Key("[N]", "float32", "score", "critic's value after the last trainable token", "critic"),
    "reference_point": Key("[N]", "float32", "score", "KTO's z, the same on every row", "reference"),
    "token_reward": Key("[N, L]", "float32", "estimate", "reward on the last trainable token, less KL"),
    "advantage": Key("[N, L]", "float32", "estimate", "advantage", zero_where_masked=True, finite=True),
    "returns": Key("[N, L]", "float32", "estimate", "critic's target", zero_where_masked=True, finite=True),
    "correction_weight": Key(
        "[N, L]", "float32", "estimate", "product of the corrections", finite=True,
        zero_where_masked=True,
    ),
    "keep": Key("[N, L]", "bool", "estimate", "and of the corrections' keep masks"),
    "loss_weight": Key("[N, L]", "float32", "weigh", "the normaliser", zero_where_masked=True, finite=True),
}  # fmt: skip
"""Every key a stage may write; ("rewards", name) beside them holds each reward unweighted, [N] float32."""


def key_name(key: BatchKey) -> str:
    """Returns a key as messages show it: ``reward``, ``rewards.math_answer``."""
    return key if isinstance(key, str) else ".".join(key)


def check(batch: TensorDict, after: Stage, keys: Iterable[BatchKey] = ()) -> None:
    """Checks shapes, dtypes and promises of all that stages up to ``after`` wrote.

    Args:
        batch: batch_size [N]. keys: those that must be present.

    Raises:
        SchemaError: naming the key, what is wrong, and the stage that wrote it.
    """
    import torch

    for key in keys:
        if key not in batch.keys(include_nested=True):
            known = [key_name(name) for name in KEYS]
            raise SchemaError(
                f"batch lacks {key_name(key)!r} after stage {after!r}{did_you_mean(key_name(key), known)}"
            )
    reached = STAGES[: STAGES.index(after) + 1]
    mask = batch["loss_mask"]
    rows, length = mask.shape
    for name, spec in KEYS.items():
        if spec.writer not in reached or spec.dtype == "text" or name not in batch.keys(include_nested=True):
            continue
        value, where = batch[name], f"batch[{key_name(name)!r}], written by stage {spec.writer!r},"
        expected = (rows,) if spec.shape == "[N]" else (rows, length)
        if tuple(value.shape[: len(expected)]) != expected or value.ndim != spec.shape.count(",") + 1:
            raise SchemaError(
                f"{where} must be {spec.shape} with N={rows}, L={length}, got {tuple(value.shape)}."
            )
        if value.dtype != getattr(torch, spec.dtype):
            raise SchemaError(f"{where} must be {spec.dtype}, got {value.dtype}.")
        if spec.zero_where_masked and bool(torch.where(mask, 0, value).any()):
            raise SchemaError(f"{where} must be 0 where loss_mask is false.")
        if spec.finite:
            trained = torch.where(mask, value, 0) if value.ndim > 1 else value
            if not bool(torch.isfinite(trained).all()):
                row = int((~torch.isfinite(trained)).nonzero()[0, 0])
                raise SchemaError(f"{where} is not finite in row {row}.")
