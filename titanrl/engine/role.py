"""A model with its forward pass: micro-batches in, PolicyOutputs out.

The policy and the frozen reference are roles.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from tensordict import TensorDict

from titanrl.engine.attention import attention_masks
from titanrl.engine.build import Model
from titanrl.engine.head import Request
from titanrl.engine.mesh import Mesh
from titanrl.engine.packing import MicroBatch, blank, lay_out, plan
from titanrl.ops.logprob import EAGER, Kernels, TokenStatistics
from titanrl.protocols import PolicyOutputs

__all__ = ["Role"]


class Role:
    """Log-probs of a model at the sampling temperature."""

    def __init__(
        self, model: Model, mesh: Mesh, *, max_rows: int, temperature: float, kernels: Kernels = EAGER
    ) -> None:
        self.model = model
        self.mesh = mesh
        self._max_rows = max_rows
        self._temperature = temperature
        self._kernels = kernels

    def micro_batches(self, batch: TensorDict) -> list[MicroBatch]:
        """Returns this rank's rows as micro-batches; every data-parallel rank gets the same number of them,
        >= 1.

        A rank with fewer rows gets blanks: collectives inside the model need all ranks.
        """
        device = self.mesh.device
        parts = [lay_out(batch, rows, device) for rows in plan(batch, self._max_rows)]
        count = torch.tensor(max(1, len(parts)), device=device)
        if self.mesh.dp_group is not None:
            dist.all_reduce(count, dist.ReduceOp.MAX, group=self.mesh.dp_group)
        return parts + [blank(batch, device) for _ in range(int(count) - len(parts))]

    def forward(self, micro_batch: MicroBatch) -> PolicyOutputs:
        """Returns [B, L] float32 outputs, 0 where masked; gradients flow where grad mode is on."""
        masks = attention_masks(self.model.inner_attention, micro_batch.layout)
        with self.model.head.request(self.request(micro_batch)):
            statistics: TokenStatistics = self.model.parts[0](
                micro_batch.tokens, positions=micro_batch.positions, attention_masks=masks
            )
        return outputs(statistics, micro_batch)

    def request(self, micro_batch: MicroBatch) -> Request:
        """Returns what the head is asked for.

        The labels' log-probs, and those of candidates if the batch has any.
        """
        batch, place = micro_batch.batch, micro_batch.place
        ids = batch["labels"].flatten()[place].unsqueeze(-1)
        if "candidate_ids" in batch:
            ids = torch.cat([ids, batch["candidate_ids"].flatten(0, 1)[place]], dim=-1)
        return Request(micro_batch.chosen, ids, self._temperature, self._kernels)

    @torch.no_grad()
    def score(self, batch: TensorDict, keys: Sequence[str] = ("logprob",)) -> dict[str, torch.Tensor]:
        """Returns {key: [N, L(, K)] float32 on the CPU, 0 where masked} at the current weights; a collective.

        The numbers are those of the update's first forward pass, bit for bit, when it is given the same rows.

        Args:
            batch: this rank's N rows: input_ids, labels, loss_mask, group_id. keys: fields of PolicyOutputs.
        """
        needed = [
            key for key in ("input_ids", "labels", "loss_mask", "group_id", "candidate_ids") if key in batch
        ]
        rows = batch.select(*needed)
        shape = rows["labels"].shape
        scored: dict[str, torch.Tensor] = {}
        for micro_batch in self.micro_batches(rows):
            values = self.forward(micro_batch)
            for key in keys:
                value = getattr(values, key)
                if value is None:
                    raise ValueError(f"cannot score {key!r}: this model does not compute it.")
                target = scored.setdefault(key, torch.zeros((*shape, *value.shape[2:])))
                if len(micro_batch.rows):
                    target[micro_batch.rows, : value.shape[1]] = value.cpu()
        self.reshard()
        return scored

    def reshard(self) -> None:
        """Frees gathered weights, so that the next forward pass gathers the weights as they are then."""
        for module in self.model.fsdp_modules():
            module.reshard()


def outputs(statistics: TokenStatistics, micro_batch: MicroBatch) -> PolicyOutputs:
    """Returns the statistics of the chosen tokens at their places in [B, L]."""
    shape, place = micro_batch.batch["labels"].shape, micro_batch.place

    def at_places(value: torch.Tensor) -> torch.Tensor:
        flat = value.new_zeros(shape.numel(), *value.shape[1:])
        return flat.index_copy(0, place, value).view(*shape, *value.shape[1:])

    logprob = at_places(statistics.logprob)
    return PolicyOutputs(
        logprob=logprob[..., 0],
        entropy=at_places(statistics.entropy),
        sum_pi_squared=at_places(statistics.sum_pi_squared),
        candidate_logprob=logprob[..., 1:] if logprob.shape[-1] > 1 else None,
    )
