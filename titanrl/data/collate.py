"""Token ids, sampled or fixed -> the batch: right-padded, label-aligned, ids exactly as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict

from titanrl.data.encode import TokenizedExample
from titanrl.protocols import Completion, RolloutRequest

__all__ = ["collate_rollouts", "collate_examples", "trim"]

TOKEN_REWARD = "token_reward"
ROW_STRIDE = 2**20
"""More samples than any prompt has in one step: row_id = group * ROW_STRIDE + sample."""


def collate_rollouts(
    rows: Sequence[RolloutRequest],
    samples: Sequence[Completion],
    *,
    decode: Callable[[Sequence[int]], str],
    version: int,
) -> TensorDict:
    """Returns the batch that stage `sample` promises, batch_size [N].

    loss_mask covers exactly the sampled tokens, their end token included. Padded ids are 0.

    Args:
        rows, samples: N each, in the same order. version: of the weights that sampled.
    """
    assert len(rows) == len(samples), f"{len(samples)} samples came back for {len(rows)} rows"
    length = max(len(row.prompt_ids) + len(sample.ids) for row, sample in zip(rows, samples, strict=True)) - 1
    shape = (len(rows), length)
    input_ids, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    loss_mask, logprob = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.float32)
    for index, (row, sample) in enumerate(zip(rows, samples, strict=True)):
        raw = torch.tensor([*row.prompt_ids, *sample.ids], dtype=torch.int64)
        end, start = len(raw) - 1, len(row.prompt_ids) - 1
        input_ids[index, :end], labels[index, :end] = raw[:-1], raw[1:]
        loss_mask[index, start:end] = True
        logprob[index, start:end] = torch.tensor(list(sample.logprobs), dtype=torch.float32)
    return TensorDict(
        {
            "input_ids": input_ids,
            "labels": labels,
            "loss_mask": loss_mask,
            "sampler_logprob": logprob,
            "policy_version": torch.full((len(rows),), version, dtype=torch.int32),
            "group_id": torch.tensor([row.group for row in rows], dtype=torch.int64),
            "row_id": torch.tensor([row.group * ROW_STRIDE + row.sample for row in rows], dtype=torch.int64),
            "finish_reason": torch.tensor([sample.finish_reason for sample in samples], dtype=torch.int8),
            "text": {
                "prompt": [row.text for row in rows],
                "response": [decode(sample.ids) for sample in samples],
                "answer": [row.answer for row in rows],
            },
        },
        batch_size=[len(rows)],
    )


def collate_examples(
    groups: Sequence[Sequence[TokenizedExample]], *, out_keys: Sequence[str], first_group: int = 0
) -> TensorDict:
    """Returns the batch of fixed rows, batch_size [N]: what a source writes in the place of stage `sample`.

    loss_mask covers the trained labels. Padded ids are 0.

    Args:
        groups: the rows of each example, >= 1 in all. out_keys: those that the source promises beside the
            tokens. first_group: number of the first of these groups in its step.

    Raises:
        KeyError: a row lacks a number that its source promises.
    """
    rows = [row for group in groups for row in group]
    shape = (len(rows), max(len(row.ids) for row in rows) - 1)
    input_ids, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    loss_mask, token_reward = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
    for index, row in enumerate(rows):
        raw, end = torch.tensor(row.ids, dtype=torch.int64), len(row.ids) - 1
        input_ids[index, :end], labels[index, :end] = raw[:-1], raw[1:]
        loss_mask[index, :end] = torch.tensor(row.trained[1:])
        for place, label in row.step_labels.items():
            token_reward[index, place - 1] = label
    numbered = [(first_group + g, i) for g, group in enumerate(groups) for i in range(len(group))]
    scalars = {
        key: torch.tensor([row.scalars[key] for row in rows]) for key in out_keys if key != TOKEN_REWARD
    }
    steps = {TOKEN_REWARD: token_reward} if TOKEN_REWARD in out_keys else {}
    heads = [row.head_id for row in rows if row.head_id is not None]
    if heads:
        scalars["head_id"] = torch.tensor(heads)
    return TensorDict(
        {
            "input_ids": input_ids,
            "labels": labels,
            "loss_mask": loss_mask,
            "group_id": torch.tensor([group for group, _ in numbered], dtype=torch.int64),
            "row_id": torch.tensor([group * ROW_STRIDE + i for group, i in numbered], dtype=torch.int64),
            **scalars,
            **steps,
        },
        batch_size=[len(rows)],
    )


def trim(batch: TensorDict, length: int) -> TensorDict:
    """Returns the batch with every [N, L] key padded or cut to ``length`` label positions."""
    _, current = batch["loss_mask"].shape
    if current == length:
        return batch
    changed = {}
    for key, value in batch.items(include_nested=True, leaves_only=True):
        if isinstance(value, torch.Tensor) and value.ndim >= 2 and value.shape[1] == current:
            kept = value[:, :length]
            fill = kept.new_zeros((value.shape[0], max(length - current, 0), *value.shape[2:]))
            changed[key] = torch.cat([kept, fill], dim=1)
    result = batch.copy()
    result.update(TensorDict(changed, batch_size=batch.batch_size))
    return result
