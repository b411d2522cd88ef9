"""KTO's reference point: how far the policy has moved from the reference on answers to other prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from titanrl.engine import collectives
from titanrl.errors import TrainingError
from titanrl.ops.sequence import sequence_sum

if TYPE_CHECKING:
    from titanrl.training.session import Session

__all__ = ["mismatched", "set_reference_point"]


def set_reference_point(session: Session[Any], batch: TensorDict) -> TensorDict:
    """Returns the global batch with ``reference_point`` [N] where some component reads it, else as it is.

        z = max(0, mean over the rows of sum_t m (l - l_ref))

    on each prompt with the answer of the row before it, at the weights before the update; the clamp comes
    after the mean over all ranks. Every row carries the same number.

    Source: KTO 2402.01306.

    Raises:
        TrainingError: one row alone, which has no other's answer.
    """
    if "reference_point" not in session.scored_keys:
        return batch
    if len(batch) < 2:
        raise TrainingError(
            "[algorithm.loss] 'kto' compares each prompt with another row's answer, got a step of one row; "
            "raise [loop] prompts_per_step."
        )
    engine = session.engine
    rows = collectives.shard_batch(
        mismatched(batch, session.experiment.training.seq_len), engine.dp_rank, engine.dp_degree
    )
    log_ratio = engine.score(rows)["logprob"] - engine.frozen["reference"].score(rows)["logprob"]
    local = sequence_sum(log_ratio, rows["loss_mask"]).double().sum()
    parts = collectives.gather_objects([float(local)], engine.dp_group, engine.dp_degree)
    point = max(0.0, sum(parts) / len(batch))
    return batch.copy().set("reference_point", torch.full((len(batch),), point))


def mismatched(batch: TensorDict, max_length: int) -> TensorDict:
    """Returns N rows: the prompt of row i with the answer of row i - 1, the first with the last row's.

    A prompt ends where the first trained label begins; an answer is all from there to the last trained label.

    Args:
        batch: input_ids, labels, loss_mask [N, L]. max_length: of a row, tokens; longer ones lose their end.
    """
    mask = batch["loss_mask"]
    raw = torch.cat([batch["input_ids"][:, :1], batch["labels"]], dim=1)
    position = torch.arange(1, mask.shape[1] + 1)
    starts = torch.where(mask, position, mask.shape[1] + 1).amin(1).tolist()
    ends = torch.where(mask, position + 1, 0).amax(1).tolist()
    rows: list[tuple[torch.Tensor, torch.Tensor]] = []
    for i in range(len(mask)):
        start, end = starts[i - 1], ends[i - 1]
        # A row without a trained label has no answer; its successor then keeps its prompt alone.
        answer, trained = raw[i - 1, start:end], mask[i - 1, start - 1 : max(end - 1, start - 1)]
        prompt = raw[i, : starts[i]]
        ids = torch.cat([prompt, answer])[:max_length]
        rows.append((ids, torch.cat([torch.zeros(len(prompt), dtype=torch.bool), trained])[:max_length]))
    length = max(len(ids) for ids, _ in rows) - 1
    shape = (len(rows), length)
    input_ids, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    loss_mask = torch.zeros(shape, dtype=torch.bool)
    for i, (ids, trained) in enumerate(rows):
        end = len(ids) - 1
        input_ids[i, :end], labels[i, :end], loss_mask[i, :end] = ids[:-1], ids[1:], trained[1:]
    return TensorDict(
        {
            "input_ids": input_ids,
            "labels": labels,
            "loss_mask": loss_mask,
            "group_id": torch.arange(len(rows)),
        },
        batch_size=[len(rows)],
    )
