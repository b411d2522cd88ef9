"""The batch: shape, dtype, writer and meaning of every key, and the check at each stage boundary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from titanrl.errors import SchemaError, did_you_mean

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["KEYS", "STAGES", "BatchKey", "Key", "Stage", "check", "key_name", "register_key"]

Stage = Literal["sample", "score", "estimate", "weigh", "update"]
STAGES: tuple[Stage, ...] = ("sample", "score", "estimate", "weigh", "update")
"""The stages of one step, in order. Offline, the data source writes the keys of `sample`."""

BatchKey: TypeAlias = str | tuple[str, ...]
Shape: TypeAlias = Literal["[N]", "[N, L]", "[N, L, K]"]
Dtype: TypeAlias = Literal["int64", "int32", "int8", "bool", "float32", "text"]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the batch."""

    shape: Shape
    dtype: Dtype
    writer: Stage
    meaning: str
    role: str | None = None
    """Table that must exist for the key to be written: ``reference``, ``critic``, ``teacher``."""
    zero_where_masked: bool = False
    finite: bool = False
    """Whether the values must be finite where ``loss_mask`` is true (shape [N]: in every row)."""


KEYS: dict[BatchKey, Key] = {
    "input_ids": Key("[N, L]", "int64", "sample", "raw[:-1], right-padded"),
    "labels": Key("[N, L]", "int64", "sample", "raw[1:], right-padded; position t scores labels[:, t]"),
    "loss_mask": Key("[N, L]", "bool", "sample", "true iff labels[t] was sampled by the policy"),
    "sampler_logprob": Key("[N, L]", "float32", "sample", "log-prob under the distribution sampled from"),
    "policy_version": Key("[N]", "int32", "sample", "version of the weights at the first sampled token"),
    "policy_version_token": Key("[N, L]", "int32", "sample", "version of the weights per token; -1: masked"),
    "current_version": Key("[N]", "int32", "sample", "version of the weights being trained, on every row"),
    "group_id": Key("[N]", "int64", "sample", "rows of one prompt, or one preference pair; contiguous"),
    "row_id": Key("[N]", "int64", "sample", "number of the row in its step, over all ranks"),
    "prompt_id": Key("[N]", "int64", "sample", "identity of the prompt, stable over steps and restarts"),
    "prompt_drift": Key("[N]", "float32", "score", "mean |change of log-prob| of the prompt's last response"),
    "rollout_id": Key("[N]", "int64", "sample", "number of the rollout in its step; it may have many rows"),
    "episode_id": Key("[N]", "int64", "sample", "episode of the row, unique in its group"),
    "turn_id": Key("[N]", "int64", "sample", "position of the row in its episode"),
    "state_id": Key("[N]", "int64", "sample", "state acted in; equal for equal states of a group"),
    "step_reward": Key("[N]", "float32", "sample", "the environment's reward for this turn alone"),
    "input_length": Key("[N]", "int64", "sample", "tokens of the row that were not generated"),
    "num_turns": Key("[N]", "int64", "sample", "turns of the row"),
    "finish_reason": Key("[N]", "int8", "sample", "0 stop, 1 length, 2 abort"),
    "agent_id": Key("[N]", "int64", "sample", "agent of a multi-agent episode"),
    "baseline_reward": Key("[N]", "float32", "sample", "reward of the greedy response to the same prompt"),
    "margin": Key("[N]", "float32", "sample", "human margin of a preference pair, equal on its two rows"),
    "head_id": Key("[N]", "int64", "sample", "value head that the labels are about; -1: the weighted sum"),
    ("text", "prompt"): Key("[N]", "text", "sample", "prompt as text; of a chat, its last message"),
    ("text", "conversation"): Key("[N]", "text", "sample", "whole prompt as text; of a chat, all messages"),
    ("text", "response"): Key(
        "[N]", "text", "sample", "response as text, with special tokens but the end token"
    ),
    ("text", "answer"): Key("[N]", "text", "sample", "reference answer, or the scorer's JSON"),
    ("text", "columns"): Key("[N]", "text", "sample", "the other columns of the prompt's row, a mapping"),
    ("text", "source"): Key("[N]", "text", "sample", "name of the source that the prompt comes from"),
    ("text", "transcript"): Key("[N]", "text", "sample", "all messages of the rollout, JSON values"),
    ("text", "outcome"): Key("[N]", "text", "sample", "the environment's rewards and error, a mapping"),
    "reward": Key("[N]", "float32", "score", "weighted sum of the rewards; NaN marks an unscored row"),
    "old_logprob": Key("[N, L]", "float32", "score", "policy's log-probs before the update", finite=True),
    "old_entropy": Key("[N, L]", "float32", "score", "policy's entropy before the update, nats", finite=True),
    "sum_pi_squared": Key("[N, L]", "float32", "score", "sum over the vocabulary of pi_old^2", finite=True),
    "ref_logprob": Key(
        "[N, L]", "float32", "score", "reference policy's log-probs", "reference", finite=True
    ),
    "teacher_logprob": Key("[N, L]", "float32", "score", "teacher's log-probs", "teacher", finite=True),
    "candidate_ids": Key("[N, L, K]", "int64", "score", "teacher's top-k token ids", "teacher"),
    "candidate_logprob": Key("[N, L, K]", "float32", "score", "teacher's log-probs of them", "teacher"),
    "value": Key("[N, L]", "float32", "score", "critic's values before the update", "critic", finite=True),
    "final_value": Key("[N]", "float32", "score", "critic's value after the last response token", "critic"),
    "reference_point": Key("[N]", "float32", "score", "KTO's z, the same on every row", "reference"),
    "token_reward": Key("[N, L]", "float32", "estimate", "reward per token, less KL in the reward"),
    "advantage": Key("[N, L]", "float32", "estimate", "advantage", zero_where_masked=True, finite=True),
    "returns": Key("[N, L]", "float32", "estimate", "critic's target", zero_where_masked=True, finite=True),
    "correction_weight": Key(
        "[N, L]", "float32", "estimate", "product of the corrections", zero_where_masked=True, finite=True
    ),
    "keep": Key("[N, L]", "bool", "estimate", "conjunction of the corrections' keep masks"),
    "loss_weight": Key("[N, L]", "float32", "weigh", "the normalizer", zero_where_masked=True, finite=True),
}
"""Every key that a stage may write. Beside them, ("rewards", name) holds each reward unweighted, [N] float32,
and ("token_rewards", name) each per-token reward, [N, L] float32."""


LOGPROB_KEYS = ("sampler_logprob", "old_logprob", "ref_logprob", "teacher_logprob")
"""Keys of log-probs of sampled tokens, which are never positive."""
LOGPROB_TOLERANCE = 1e-2
"""Largest value of a log-prob that passes as rounding, nats."""


def register_key(
    name: str,
    shape: Shape,
    dtype: Dtype,
    writer: Stage,
    meaning: str,
    *,
    zero_where_masked: bool = False,
    finite: bool = False,
) -> None:
    """Adds a key to the batch, which a component of the writing stage names in its ``out_keys``.

    Any component may read it. A source writes it from the column of that name, or offline from the scalar of
    that name; a sampler writes it from ``Completion.extras``, a reward by returning it by name. Registering
    a key twice with the same facts is fine: a file may be imported twice, and a plug-in may write a built-in
    key that titanrl itself does not write. The first meaning stays.

    Args:
        name: key of the batch; not a built-in one with other facts.
        shape: ``[N]`` (one value per row), ``[N, L]`` (one per label) or ``[N, L, K]``.
        dtype: torch dtype by name, or ``text`` for Python objects per row, which only rewards read.
        writer: stage that writes it: ``sample`` (a source, a sampler) or ``score`` (a reward).
        meaning: one phrase for ``titanrl show`` and the documentation, with its unit.
        zero_where_masked: whether values are checked to be 0 where ``loss_mask`` is false.
        finite: whether values are checked to be finite where ``loss_mask`` is true.

    Raises:
        ValueError: an empty name, an unknown shape, dtype or stage, or a key registered with other facts.
    """
    for what, value, allowed in (
        ("shape", shape, get_args(Shape)),
        ("dtype", dtype, get_args(Dtype)),
        ("writer", writer, ("sample", "score")),
    ):
        if value not in allowed:
            near = did_you_mean(str(value), allowed) or ";"
            raise ValueError(
                f"batch key {name!r}: {what} must be one of {', '.join(allowed)}, got {value!r}{near}"
            )
    if not isinstance(name, str) or not name.isidentifier() or name in ("text", "rewards", "token_rewards"):
        raise ValueError(f"batch key must be a Python identifier that is not taken, got {name!r}.")
    if (shape == "[N, L, K]" or dtype == "text") and writer == "score":
        raise ValueError(f"batch key {name!r}: a reward writes [N] or [N, L] numbers, got {shape} {dtype}.")
    key = Key(shape, dtype, writer, meaning, zero_where_masked=zero_where_masked, finite=finite)
    known = KEYS.setdefault(name, key)
    if replace(key, meaning=known.meaning) != known:
        raise ValueError(
            f"batch key {name!r} is already registered as {known.shape} {known.dtype}, written by stage "
            f"{known.writer!r} ({known.meaning}); choose another name."
        )


def key_name(key: BatchKey) -> str:
    """Returns a key as messages show it: ``reward``, ``rewards.math_answer``."""
    return key if isinstance(key, str) else ".".join(key)


def check(batch: TensorDict, after: Stage, keys: Iterable[BatchKey] = ()) -> None:
    """Checks shapes, dtypes and guarantees of every key that the stages up to ``after`` wrote.

    Args:
        batch: batch_size [N].
        after: the stage that ended last.
        keys: keys that must be present.

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
        if name in LOGPROB_KEYS and value.numel():
            largest = torch.where(mask, value, 0).amax(1)
            if (number := float(largest.max())) > LOGPROB_TOLERANCE:
                raise SchemaError(
                    f"{where} is {number:.4g} in row {int(largest.argmax())}, but a log-prob is never "
                    "positive; the model or the sampler that computed it is at fault."
                )
        if spec.finite:
            trained = torch.where(mask, value, 0) if value.ndim > 1 else value
            if not bool(torch.isfinite(trained).all()):
                row = int((~torch.isfinite(trained)).nonzero()[0, 0])
                raise SchemaError(f"{where} is not finite in row {row}.")
