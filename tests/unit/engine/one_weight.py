"""A model of one weight in the engine's scoring and updates: sums over micro-batches by hand.

Its log-prob (or value) of a label is the weight times the input token's id, so a gradient counts tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from tensordict import TensorDict
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.distributed import ParallelDims

from titanrl.algorithm.metrics import Sums
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import LRScheduler, Parallelism
from titanrl.engine.mesh import build_mesh
from titanrl.engine.model import Model
from titanrl.engine.optimizer import build_schedule
from titanrl.engine.packing import MicroBatch
from titanrl.engine.scoring_model import ScoringModel
from titanrl.engine.update import Updater
from titanrl.ops.logprob import TokenStatistics

NO_TERMS = (0.0, 0.0)


class ModelWithoutAttention(Model):
    """A model whose parts are any modules."""

    @property
    def inner_attention(self) -> None:
        return None


def model_of(parts: Sequence[torch.nn.Module], **fields: Any) -> Model:
    """Returns a model of the given parts, which is of no family and in no folder."""
    unused: Any = None
    return ModelWithoutAttention(
        parts=cast(Any, list(parts)),
        adapter=unused,
        config=unused,
        tied=False,
        heads={},
        folder="",
        **{"is_value_model": False, **fields},
    )


class OneWeightModel(ScoringModel):
    """A scoring model whose forward pass is a product."""

    def __init__(self, *, max_tokens: int = 1, head: str = "language", pp: int = 1, tp: int = 1) -> None:
        """Makes a mesh of the given degrees in one process.

        Args:
            max_tokens: of a micro-batch; 1: each group is a micro-batch.
            head: "language" or "value".
            pp: pipeline degree of the mesh.
            tp: tensor degree of the mesh.
        """
        self.weight = torch.nn.Parameter(torch.ones(()))
        mesh = build_mesh(Parallelism())
        if pp * tp > 1:
            dims = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=tp, pp=pp, ep=1, world_size=pp * tp)
            mesh = replace(mesh, dims=dims)
        super().__init__(
            model_of([torch.nn.ParameterList([self.weight])], is_value_model=head == "value"),
            mesh,
            max_tokens=max_tokens,
            temperature=lambda: 1.0,
        )

    def _forward(self, micro_batch: MicroBatch) -> Any:
        product = self.weight * micro_batch.tokens[0, micro_batch.gather_index].float()
        if self.model.is_value_model:
            return product
        none = torch.zeros(len(product), 0)
        return TokenStatistics(product.unsqueeze(-1), product, product.detach(), none.long(), none)


class GradientDescent(OptimizersContainer):
    """TorchTitan's optimizers with plain gradient descent, which they lack."""

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Callable[..., torch.optim.Optimizer]:
        return {"SGD": torch.optim.SGD}[name]


class OneWeight:
    """Scores, measures and updates like a Learner, with plain gradient descent and no clipping."""

    def __init__(self, *, lr: float = 0.0, **role: Any) -> None:
        self.scoring_model = OneWeightModel(**role)
        self.updates = 0
        group = ParamGroupConfig(pattern=".*", optimizer_name="SGD", optimizer_kwargs={"lr": lr})
        optimizers = GradientDescent(
            OptimizersContainer.Config(param_groups=[group], implementation="for-loop"),
            model_parts=cast(Any, self.scoring_model.model.parts),
        )
        schedule = build_schedule(LRScheduler(), optimizers, steps=100)
        self._updater = Updater(self.scoring_model, optimizers, schedule, max_norm=float("inf"), backend=None)

    def score(self, rows: TensorDict, keys: Sequence[str] = ("logprob",)) -> dict[str, torch.Tensor]:
        return self.scoring_model.score(rows, keys)

    def measure(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        return self._updater.measure(rows, objective, coefficients)

    def update(self, rows: TensorDict, objective: Objective, coefficients: tuple[float, float]) -> Sums:
        self.updates += 1
        return self._updater.update(rows, objective, coefficients)


def rows_of(ids: Sequence[int], lengths: Sequence[int] | None = None) -> TensorDict:
    """Returns one group per row: row i repeats ids[i] at lengths[i] (1) loss tokens of weight 1."""
    lengths = [1] * len(ids) if lengths is None else lengths
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.where(mask, torch.tensor(ids)[:, None], 0)
    return TensorDict(
        {
            "input_ids": tokens,
            "labels": tokens,
            "loss_mask": mask,
            "loss_weight": mask.float(),
            "group_id": torch.arange(len(ids)),
        },
        batch_size=[len(ids)],
    )
