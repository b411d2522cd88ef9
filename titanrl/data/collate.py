"""Collation of rollouts and dataset examples into the batch: right-padded and label-aligned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from titanrl.data.encode import TokenizedExample
from titanrl.protocols import Completion, RolloutRequest
from titanrl.protocols.batch import KEYS

__all__ = ["collate_rollouts", "collate_examples"]

TOKEN_REWARD = "token_reward"
ROW_STRIDE = 2**20
"""Upper bound of the samples per prompt: row_id = prompt_index * ROW_STRIDE + sample_index."""


def collate_rollouts(
    requests: Sequence[RolloutRequest],
    completions: Sequence[Completion],
    *,
    decode: Callable[[Sequence[int]], str],
    version: int,
) -> TensorDict:
    """Return the batch that stage `sample` promises, batch_size [N].

    loss_mask covers the tokens that the policy sampled, their end token included, and no others: prompts,
    tokens given between turns and padding are masked. There, sampler_logprob is 0 and policy_version_token
    is -1.
    policy_version is the version at a row's first sampled token. Padded ids are 0.

    Args:
        requests: N requests.
        completions: one per request, in the same order.
        decode: completion ids -> text.
        version: the sampler's policy version, for completions that state none of their own.

    Raises:
        ValueError: a completion whose lists differ in length, an extra key that is not registered, or that
            only some rows have.
    """
    assert len(requests) == len(completions), f"{len(completions)} completions for {len(requests)} requests"
    pairs = list(zip(requests, completions, strict=True))
    shape = (len(requests), max(len(request.prompt_ids) + len(each.ids) for request, each in pairs) - 1)
    input_ids, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    loss_mask, logprob = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.float32)
    versions = torch.zeros(shape, dtype=torch.int32)
    first_version = torch.full((len(requests),), version, dtype=torch.int32)
    for index, (request, completion) in enumerate(pairs):
        _check_lengths(request, completion)
        raw = torch.tensor([*request.prompt_ids, *completion.ids], dtype=torch.int64)
        end, start = len(raw) - 1, len(request.prompt_ids) - 1
        input_ids[index, :end], labels[index, :end] = raw[:-1], raw[1:]
        sampled = True if completion.mask is None else torch.tensor(completion.mask, dtype=torch.bool)
        loss_mask[index, start:end] = sampled
        logprob[index, start:end] = torch.tensor(list(completion.logprobs), dtype=torch.float32)
        if completion.versions is None:
            versions[index, start:end] = version
        else:
            versions[index, start:end] = torch.tensor(list(completion.versions), dtype=torch.int32)
            if bool(loss_mask[index].any()):
                first_version[index] = versions[index, loss_mask[index]][0]
    extra_keys = sorted({key for request, each in pairs for key in (*request.extras, *each.extras)})
    return TensorDict(
        {
            "input_ids": input_ids,
            "labels": labels,
            "loss_mask": loss_mask,
            "sampler_logprob": torch.where(loss_mask, logprob, 0.0),
            "policy_version": first_version,
            "policy_version_token": torch.where(loss_mask, versions, -1),
            "group_id": torch.tensor([request.prompt_index for request in requests], dtype=torch.int64),
            "prompt_id": torch.tensor([request.prompt_id for request in requests], dtype=torch.int64),
            "row_id": torch.tensor([_row_id(request) for request in requests], dtype=torch.int64),
            "finish_reason": torch.tensor([each.finish_reason for each in completions], dtype=torch.int8),
            "text": {
                "prompt": [request.text for request in requests],
                "conversation": [request.conversation or request.text for request in requests],
                "response": [decode(each.ids) for each in completions],
                "answer": [request.answer for request in requests],
                "columns": [dict(request.columns) for request in requests],
                "source": [request.source for request in requests],
            },
            **{key: _extra(key, pairs, shape) for key in extra_keys},
        },
        batch_size=[len(requests)],
    )


def _extra(
    key: str, pairs: Sequence[tuple[RolloutRequest, Completion]], shape: tuple[int, int]
) -> torch.Tensor | list[Any]:
    """Return a registered key: [N], [N, L] with 0 outside the completion, or a list of N texts."""
    spec, values = KEYS.get(key), []
    if spec is None:
        raise ValueError(f"{key!r} is no key of the batch; register_key declares it.")
    for request, completion in pairs:
        value = completion.extras.get(key, request.extras.get(key))
        if value is None:
            raise ValueError(
                f"completion {request.sample_index} of prompt {request.prompt_index} has no {key!r}, which "
                "other rows have; add it to the extras of every completion or as a column of every prompt."
            )
        values.append(value)
    if spec.dtype == "text":
        return values
    dtype = getattr(torch, spec.dtype)
    if spec.shape == "[N]":
        return torch.tensor(values, dtype=dtype)
    result = torch.zeros(shape, dtype=dtype)
    for index, ((request, completion), value) in enumerate(zip(pairs, values, strict=True)):
        if len(value) != len(completion.ids):
            raise ValueError(
                f"completion {request.sample_index} of prompt {request.prompt_index}: {key} must have one "
                f"entry per token, {len(completion.ids)}, got {len(value)}; fix the sampler."
            )
        start = len(request.prompt_ids) - 1
        result[index, start : start + len(completion.ids)] = torch.tensor(value, dtype=dtype)
    return result


def _row_id(request: RolloutRequest) -> int:
    return request.prompt_index * ROW_STRIDE + request.sample_index


def _check_lengths(request: RolloutRequest, completion: Completion) -> None:
    """Refuse a completion whose logprobs, mask or versions do not have one entry per id."""
    for name in ("logprobs", "mask", "versions"):
        values = getattr(completion, name)
        if values is not None and len(values) != len(completion.ids):
            raise ValueError(
                f"completion {request.sample_index} of prompt {request.prompt_index}: {name} must have one "
                f"entry per token, {len(completion.ids)}, got {len(values)}; fix the sampler."
            )


def collate_examples(
    groups: Sequence[Sequence[TokenizedExample]], *, out_keys: Sequence[str], first_group: int = 0
) -> TensorDict:
    """Return the batch of dataset examples, batch_size [N], in place of stage `sample`.

    Padded ids are 0.

    Args:
        groups: the rows of each example, at least one in all.
        out_keys: keys that the source declares beside the tokens.
        first_group: index of the first of these groups in its step.

    Raises:
        KeyError: a row lacks a value that its source declares.
    """
    rows = [row for group in groups for row in group]
    shape = (len(rows), max(len(row.ids) for row in rows) - 1)
    input_ids, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    loss_mask, token_reward = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
    for index, row in enumerate(rows):
        raw, end = torch.tensor(row.ids, dtype=torch.int64), len(row.ids) - 1
        input_ids[index, :end], labels[index, :end] = raw[:-1], raw[1:]
        loss_mask[index, :end] = torch.tensor(row.loss_mask[1:])
        for position, label in row.step_labels.items():
            token_reward[index, position - 1] = label
    numbered = [(first_group + g, i) for g, group in enumerate(groups) for i in range(len(group))]
    scalars = {
        key: torch.tensor([row.scalars[key] for row in rows], dtype=getattr(torch, KEYS[key].dtype))
        for key in out_keys
        if key != TOKEN_REWARD
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
