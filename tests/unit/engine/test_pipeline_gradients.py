"""A pipeline schedule adds to the accumulated gradient and does not rescale it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.pipelining import PipelineStage

from tests.unit.engine.one_weight import OneWeightModel, model_of, rows_of
from titanrl.engine.mesh import init_distributed
from titanrl.engine.packing import MicroBatch
from titanrl.engine.pipeline import run_pipeline


class Product(torch.nn.Module):
    """A stage of one weight: [1, T] ids in, [1, T, 1] products out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, tokens: torch.Tensor, *, positions: Any, attention_masks: Any) -> torch.Tensor:
        return self.weight * tokens.float().unsqueeze(-1)


@pytest.mark.parametrize("schedule", ["1F1B", "GPipe"])
def test_pipeline_schedule_accumulates_into_the_existing_gradient(schedule: str) -> None:
    """Three rounds of two micro-batches of gradient 1 add to 6; a rescaled sum would be 1.75 or 3.5.

    Reported as TorchTitan #1733.
    """
    device = init_distributed()
    module = Product()
    model = model_of([module], stages=[PipelineStage(module, 0, 1, device)], schedule_name=schedule)

    def hook(micro_batch: MicroBatch, hidden: torch.Tensor) -> torch.Tensor:
        return hidden[0, micro_batch.gather_index].sum()

    for accumulated in (2.0, 4.0, 6.0):
        micro_batches = OneWeightModel().micro_batches(rows_of([1, 1]))
        run_pipeline(model, micro_batches, hook, trains=True)
        assert module.weight.grad is not None
        assert module.weight.grad.item() == accumulated
