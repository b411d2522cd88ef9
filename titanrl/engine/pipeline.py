"""Runs micro-batches through pipeline stages by torch's schedules; the last stage runs head and loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from titanrl.engine.attention import attention_masks
from titanrl.engine.model import Model
from titanrl.engine.packing import MicroBatch

__all__ = ["Hook", "padded_length", "run_pipeline", "num_scheduled"]

Hook = Callable[[MicroBatch, torch.Tensor], torch.Tensor]
"""(micro-batch, hidden states [1, T, D]) -> the scalar to back-propagate."""
LENGTH_MULTIPLE = 64
"""Sequences are padded to a multiple of it, so that new lengths are rare: each costs a pass more."""


def num_scheduled(count: int, *, ranks: int, stages: int) -> int:
    """Returns the number of micro-batches, dummies included, that a schedule needs for ``count`` of them.

    At least one per rank; a multiple of the ranks if stages of a rank are interleaved.

    Args:
        count: micro-batches with rows.
        ranks: pipeline_parallel_degree.
        stages: pipeline stages of a rank.
    """
    return -(-count // ranks) * ranks if stages > 1 else max(count, ranks)


def padded_length(longest: int, divisor: int) -> int:
    """Returns the padded length of a pipeline's packed sequences, a multiple of ``divisor``."""
    step = math.lcm(LENGTH_MULTIPLE, divisor)
    return -(-longest // step) * step


def run_pipeline(model: Model, micro_batches: Sequence[MicroBatch], hook: Hook, *, trains: bool) -> None:
    """Runs the micro-batches through all stages and calls ``hook`` on the last stage for each of them.

    Gradients are summed over micro-batches. Every stage needs the same micro-batches, as many as
    ``num_scheduled`` says, with sequences of one length, the same on all data-parallel ranks: for a new
    number or length a stage makes a pass of its own, in whose collectives every rank takes part.

    Args:
        model: its parts are the stages of this rank.
        micro_batches: all of a step.
        hook: runs head and loss.
        trains: whether gradients flow back through all stages.
    """
    tokens = torch.cat([micro_batch.tokens for micro_batch in micro_batches])
    positions = torch.cat([micro_batch.positions for micro_batch in micro_batches])
    visible_until = torch.cat([micro_batch.visible_until for micro_batch in micro_batches])
    indices = torch.arange(len(micro_batches), device=tokens.device)
    masks = attention_masks(model.inner_attention, visible_until)

    def last_stage(hidden: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        # torch 2.13 calls this once more than there are micro-batches, to learn shapes: keyed by index.
        return hook(micro_batches[int(index)], hidden)

    schedule = _schedule(model, len(tokens), tokens.shape[1], last_stage)
    arguments: dict[str, Any] = {"positions": positions, "attention_masks": masks}
    if model.is_last:
        arguments |= {"target": indices, "losses": []}
    run = schedule.step if trains else schedule.eval
    run(*([tokens] if model.is_first else []), return_outputs=False, **arguments)


def _schedule(model: Model, num_micro_batches: int, length: int, loss: Callable[..., torch.Tensor]) -> Any:
    """Returns the schedule for these sizes: the last one if they are the same.

    A stage's buffers are made for one number and length of micro-batches.
    """
    sizes = (num_micro_batches, length)
    if model.schedule_sizes != sizes:
        schedule_class = get_schedule_class(model.schedule_name)
        stages = model.stages[0] if issubclass(schedule_class, PipelineScheduleSingle) else model.stages
        model.schedule = schedule_class(stages, num_micro_batches, loss_fn=loss, scale_grads=False)
        model.schedule_sizes = sizes
    model.schedule._loss_fn = loss
    return model.schedule
