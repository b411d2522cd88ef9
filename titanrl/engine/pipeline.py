"""Micro-batches through pipeline stages.

Torch's schedules, the head and the loss in the last stage's hook.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from titanrl.engine.attention import attention_masks
from titanrl.engine.build import Model
from titanrl.engine.packing import MicroBatch

__all__ = ["Hook", "line_length", "run_pipeline", "scheduled"]

Hook = Callable[[MicroBatch, torch.Tensor], torch.Tensor]
"""(micro-batch, hidden states [1, T, D]) -> scalar whose gradient is wanted."""
ROUND = 64
"""Lines are padded to a multiple, so that stages seldom meet a new length: each costs one pass more."""


def scheduled(count: int, *, ranks: int, stages: int) -> int:
    """Returns the number of micro-batches that a pipeline's schedule takes for ``count`` of them.

    At least one a rank; whole rounds where the ``stages`` of a rank, more than one, take turns.
    """
    return -(-count // ranks) * ranks if stages > 1 else max(count, ranks)


def line_length(longest: int, divisor: int) -> int:
    """Returns the length, a multiple of ``divisor``, of a pipeline's lines if the longest has ``longest``
    tokens."""
    step = math.lcm(ROUND, divisor)
    return -(-longest // step) * step


def run_pipeline(model: Model, micro_batches: Sequence[MicroBatch], hook: Hook, *, trains: bool) -> None:
    """Calls ``hook`` on the last stage for each micro-batch; with ``trains`` gradients flow through all
    stages.

    Gradients are summed over micro-batches. Every stage must be given the same micro-batches, as many as
    ``scheduled`` says, and lines of one length, the same on all data-parallel ranks: a stage that meets a new
    number or length makes a pass of its own, in whose collectives all must take part.
    """
    tokens = torch.cat([micro_batch.tokens for micro_batch in micro_batches])
    positions = torch.cat([micro_batch.positions for micro_batch in micro_batches])
    visible_until = torch.cat([micro_batch.visible_until for micro_batch in micro_batches])
    numbers = torch.arange(len(micro_batches), device=tokens.device)
    masks = attention_masks(model.inner_attention, visible_until)

    def last_stage(hidden: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        # torch 2.13 calls this once more than there are micro-batches, to learn shapes: results go by number.
        return hook(micro_batches[int(number)], hidden)

    schedule = _schedule(model, len(tokens), tokens.shape[1], last_stage)
    arguments: dict[str, Any] = {"positions": positions, "attention_masks": masks}
    if model.is_last:
        arguments |= {"target": numbers, "losses": []}
    run = schedule.step if trains else schedule.eval
    run(*([tokens] if model.is_first else []), return_outputs=False, **arguments)


def _schedule(model: Model, num_micro_batches: int, length: int, loss: Callable[..., torch.Tensor]) -> Any:
    """Returns the schedule for these sizes: the one of before if they are the same.

    A stage's buffers are made for one number and length of micro-batches.
    """
    sizes = (num_micro_batches, length)
    if model.schedule_sizes != sizes:
        kind = get_schedule_class(model.schedule_name)
        stages = model.stages[0] if issubclass(kind, PipelineScheduleSingle) else model.stages
        model.schedule = kind(stages, num_micro_batches, loss_fn=loss, scale_grads=False)
        model.schedule_sizes = sizes
    model.schedule._loss_fn = loss
    return model.schedule
