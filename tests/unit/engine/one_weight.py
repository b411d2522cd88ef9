"""A model of one weight in the engine's scoring and updates: sums over micro-batches by hand.

Its log-prob (or value) of a label is the weight times the input token's id, so a gradient counts tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
from tensordict import TensorDict

from titanrl.algorithm.metrics import Sums
from titanrl.algorithm.objective import Objective
from titanrl.engine.packing import MicroBatch
from titanrl.engine.scoring_model import ScoringModel
from titanrl.engine.update import Updater
from titanrl.ops.logprob import TokenStatistics

NO_TERMS = (0.0, 0.0)


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
        dims = SimpleNamespace(pp=pp, tp=tp, ep_enabled=False, get_optional_mesh=lambda _: None)
        mesh = SimpleNamespace(
            device=torch.device("cpu"),
            dims=dims,
            dp_group=None,
            pp_group=None,
            dp_degree=1,
            single_dp_rank=False,
        )
        model = SimpleNamespace(
            is_value_model=head == "value", stages=[], fsdp_modules=list, parameters=lambda: [self.weight]
        )
        super().__init__(cast(Any, model), cast(Any, mesh), max_tokens=max_tokens, temperature=1.0)

    def _forward(self, micro_batch: MicroBatch) -> Any:
        product = self.weight * micro_batch.tokens[0, micro_batch.gather_index].float()
        if self.model.is_value_model:
            return product
        none = torch.zeros(len(product), 0)
        return TokenStatistics(product.unsqueeze(-1), product, product.detach(), none.long(), none)


class OneWeight:
    """Scores, measures and updates like a Learner, with plain gradient descent and no clipping."""

    def __init__(self, *, lr: float = 0.0, **role: Any) -> None:
        self.scoring_model = OneWeightModel(**role)
        self.updates = 0
        descent = torch.optim.SGD([self.scoring_model.weight], lr=lr)
        optimizers = SimpleNamespace(zero_grad=descent.zero_grad, step=descent.step, optimizers=[descent])
        schedule = SimpleNamespace(step=lambda: None)
        self._updater = Updater(
            self.scoring_model,
            cast(Any, optimizers),
            cast(Any, schedule),
            max_norm=float("inf"),
            backend=None,
        )

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
