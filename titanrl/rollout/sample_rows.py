"""A few rows of a step for samples.jsonl: texts, rewards, and numbers per token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from titanrl.protocols import FinishReason

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

__all__ = ["sample_rows"]

TOKEN_ROWS = 2
"""Rows per step that are logged with numbers per token, ten times the size of the text."""


def sample_rows(
    batch: TensorDict, count: int, pieces: Callable[[Sequence[int]], list[str]]
) -> list[dict[str, Any]]:
    """Return the first ``count`` rows of a batch with texts.

    Without rewards or advantages in the batch, their keys are left out. Of a rollout in an environment, its
    last row is shown, with ``transcript``, all its messages. The first rows hold ``per_token``,
    lists with one entry per response token: its text, ``logprob`` (the sampler's, nats), ``advantage``,
    ``log_ratio`` (trainer to sampler, before the update) and ``ref_log_ratio`` (policy to reference), as far
    as the batch has them.

    Args:
        pieces: token ids -> the text of each.
    """
    rows: list[dict[str, Any]] = []
    for position, index in enumerate(_shown(batch)[:count]):
        row = batch[index]
        mask = row["loss_mask"]
        shown = {name: batch["text", name][index] for name in ("prompt", "response", "answer")}
        if "reward" in batch:
            shown["reward"] = _number(row["reward"])
            shown["rewards"] = {
                name: _number(row["rewards", name]) for name in sorted(batch["rewards"].keys())
            }
        if "advantage" in batch:
            shown["advantage"] = float(row["advantage"][mask].mean()) if bool(mask.any()) else 0.0
        shown["finish_reason"] = FinishReason(int(row["finish_reason"])).label
        shown |= {"response_tokens": int(mask.sum()), "group": int(row["group_id"])}
        if "rollout_id" in batch:
            shown |= {"agent": int(row["agent_id"]), "transcript": batch["text", "transcript"][index]}
            if error := batch["text", "outcome"][index]["error"]:
                shown["environment_error"] = error
        if position < TOKEN_ROWS:
            shown["per_token"] = {"text": pieces(row["labels"][mask].tolist()), **_token_numbers(row)}
        rows.append(shown)
    return rows


def _shown(batch: TensorDict) -> list[int]:
    """Return the rows to show: of several rows of a rollout and agent, the last one."""
    if "rollout_id" not in batch:
        return list(range(len(batch)))
    rollouts = zip(batch["rollout_id"].tolist(), batch["agent_id"].tolist(), strict=True)
    return list({rollout: index for index, rollout in enumerate(rollouts)}.values())


def _token_numbers(row: TensorDict) -> dict[str, list[float | None]]:
    """Return the numbers of the response tokens of one row, [L] each."""
    numbers = {"logprob": row["sampler_logprob"]}
    if "advantage" in row:
        numbers["advantage"] = row["advantage"]
    if "old_logprob" in row:
        numbers["log_ratio"] = row["old_logprob"] - row["sampler_logprob"]
    if "ref_logprob" in row:
        numbers["ref_log_ratio"] = row.get("old_logprob", row["sampler_logprob"]) - row["ref_logprob"]
    return {name: _rounded(each[row["loss_mask"]]) for name, each in numbers.items()}


def _number(value: torch.Tensor) -> float | None:
    """Return a number, or None for NaN, which JSON cannot hold."""
    return float(value) if bool(value.isfinite()) else None


def _rounded(values: torch.Tensor) -> list[float | None]:
    """Return numbers with four digits; not finite ones as None, which JSON can hold."""
    return [
        float(f"{value:.4g}") if finite else None
        for value, finite in zip(values.tolist(), values.isfinite().tolist(), strict=True)
    ]
