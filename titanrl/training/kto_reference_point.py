"""KTO's reference point: the policy's distance from the reference on mismatched prompts and responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict

from titanrl.engine import collectives
from titanrl.errors import TrainingError
from titanrl.ops.sequence import sequence_sum

if TYPE_CHECKING:
    from titanrl.engine import Engine

__all__ = ["mismatched", "reference_point"]


def reference_point(engine: Engine, batch: TensorDict, max_length: int) -> float:
    """Returns KTO's z at the weights before the update; a collective.

        z = max(0, mean over the rows of sum_t m (l - l_ref))

    Each prompt is paired with the response of the row before it; the clamp comes after the mean over the
    rows of all ranks.

    Args:
        engine: its policy and its frozen model ``reference`` score the rows.
        batch: this rank's rows, with input_ids, labels, loss_mask [n, L] and row_id [n].
        max_length: maximum number of tokens of a row; longer rows are truncated at the end.

    Source: KTO 2402.01306.

    Raises:
        TrainingError: the step has a single row, so there is no other row's response.
    """
    rows = batch.select("input_ids", "labels", "loss_mask", "row_id")
    rows = collectives.gather(rows, engine.dp_group, engine.dp_degree)
    if len(rows) < 2:
        raise TrainingError(
            "[algorithm.loss] 'kto' compares each prompt with another row's response, got a step of one row; "
            "raise [loop] prompts_per_step."
        )
    local = collectives.shard_batch(mismatched(rows, max_length), engine.dp_rank, engine.dp_degree)
    log_ratio = engine.score(local)["logprob"] - engine.frozen["reference"].score(local)["logprob"]
    distance = sequence_sum(log_ratio, local["loss_mask"]).double().sum()
    parts = collectives.gather_objects([float(distance)], engine.dp_group, engine.dp_degree)
    return max(0.0, float(sum(parts)) / len(rows))


def mismatched(batch: TensorDict, max_length: int) -> TensorDict:
    """Returns N rows: the prompt of row i with the response of row i - 1; row 0 gets that of the last row.

    A prompt ends before the first loss token; a response extends from there to the last loss token.

    Args:
        batch: input_ids, labels, loss_mask [N, L].
        max_length: maximum number of tokens of a row; longer rows are truncated at the end.
    """
    mask = batch["loss_mask"]
    raw = torch.cat([batch["input_ids"][:, :1], batch["labels"]], dim=1)
    position = torch.arange(1, mask.shape[1] + 1)
    starts = torch.where(mask, position, mask.shape[1] + 1).amin(1).tolist()
    ends = torch.where(mask, position + 1, 0).amax(1).tolist()
    rows: list[tuple[torch.Tensor, torch.Tensor]] = []
    for i in range(len(mask)):
        start, end = starts[i - 1], ends[i - 1]
        # A row without loss tokens has no response, so the next row consists of its prompt only.
        response, sampled = raw[i - 1, start:end], mask[i - 1, start - 1 : max(end - 1, start - 1)]
        prompt = raw[i, : starts[i]]
        ids = torch.cat([prompt, response])[:max_length]
        rows.append((ids, torch.cat([torch.zeros(len(prompt), dtype=torch.bool), sampled])[:max_length]))
    length = max(len(ids) for ids, _ in rows) - 1
    shape = (len(rows), length)
    input_ids, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    loss_mask = torch.zeros(shape, dtype=torch.bool)
    for i, (ids, sampled) in enumerate(rows):
        end = len(ids) - 1
        input_ids[i, :end], labels[i, :end], loss_mask[i, :end] = ids[:-1], ids[1:], sampled[1:]
    return TensorDict(
        {
            "input_ids": input_ids,
            "labels": labels,
            "loss_mask": loss_mask,
            "group_id": torch.arange(len(rows)),
        },
        batch_size=[len(rows)],
    )
