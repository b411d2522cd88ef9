"""A model with its forward pass, for the policy, the critic and frozen models: rows in, PolicyOutputs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch.distributed.fsdp import FSDPModule

from titanrl.engine.attention import attention_masks
from titanrl.engine.heads.shared import ActorCriticOutput
from titanrl.engine.heads.token import HeadQuery
from titanrl.engine.mesh import Mesh
from titanrl.engine.model import Model
from titanrl.engine.packing import MicroBatch, assign_micro_batches, dummy_micro_batch, pack_sequences, pad_to
from titanrl.engine.pipeline import num_scheduled, padded_length, run_pipeline
from titanrl.engine.reduce import from_last_stage
from titanrl.ops.logprob import TokenStatistics
from titanrl.ops.row_kernels import EAGER, Kernels
from titanrl.protocols import PolicyOutputs

__all__ = ["ScoringModel", "unsharded_parameters"]

HeadOutput: TypeAlias = TokenStatistics | torch.Tensor | ActorCriticOutput
"""A policy's token statistics, the values [S] of a value model, or both."""


class ScoringModel:
    """Computes log-probs at the sampling temperature, or the values of a value model."""

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        *,
        max_tokens: int,
        temperature: Callable[[], float],
        kernels: Kernels = EAGER,
        top_k: int = 0,
    ) -> None:
        """Keeps the model and the options of its forward pass.

        Args:
            model: on the mesh.
            mesh: of the ranks.
            max_tokens: of a micro-batch.
            temperature: divides the logits, > 0.
            kernels: of the head, eager or compiled.
            top_k: number of top-k tokens at each loss token that ``score`` can return.
        """
        self.model = model
        self.mesh = mesh
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._kernels = kernels
        self._top_k = top_k

    def micro_batches(self, batch: TensorDict, *, split_groups: bool = True) -> list[MicroBatch]:
        """Returns this rank's rows as micro-batches, as many as every other data-parallel rank has, >= 1.

        A rank with fewer rows adds dummy micro-batches: collectives inside the model need all ranks.

        Args:
            batch: this rank's rows.
            split_groups: whether a group may be split; not if the loss compares rows of a group.
        """
        device = self.mesh.device
        assigned = assign_micro_batches(batch, self._max_tokens, split_groups=split_groups)
        parts = [pack_sequences(batch, rows, device) for rows in assigned]
        longest = max((part.tokens.shape[1] for part in parts), default=1)
        sizes = torch.tensor([max(1, len(parts)), longest], device=device)
        if self.mesh.dp_group is not None:
            dist.all_reduce(sizes, dist.ReduceOp.MAX, group=self.mesh.dp_group)
        count, longest = sizes.tolist()
        tp, pp = self.mesh.dims.tp, self.mesh.dims.pp
        total = num_scheduled(count, ranks=pp, stages=len(self.model.stages))
        parts += [dummy_micro_batch(batch, device) for _ in range(total - len(parts))]
        if self.model.stages:
            return [pad_to(part, padded_length(longest, tp)) for part in parts]
        return [pad_to(part, -(-part.tokens.shape[1] // tp) * tp) for part in parts]

    def run(
        self,
        micro_batches: Sequence[MicroBatch],
        use: Callable[[PolicyOutputs, MicroBatch], torch.Tensor | None],
    ) -> None:
        """Computes each micro-batch and calls ``use`` with its outputs on ranks that hold the head.

        If ``use`` returns a scalar, it is back-propagated before the next micro-batch is computed.
        """
        self._run(
            micro_batches, lambda output, micro_batch: use(policy_outputs(output, micro_batch), micro_batch)
        )

    def _run(
        self,
        micro_batches: Sequence[MicroBatch],
        use: Callable[[HeadOutput, MicroBatch], torch.Tensor | None],
    ) -> None:
        trains = torch.is_grad_enabled()
        if self.model.stages:

            def hook(micro_batch: MicroBatch, hidden: torch.Tensor) -> torch.Tensor:
                with self.model.head.with_query(self.head_query(micro_batch)):
                    output = self.model.head(hidden)
                loss = use(output, micro_batch)
                return torch.zeros((), device=hidden.device) if loss is None else loss

            run_pipeline(self.model, micro_batches, hook, trains=trains)
            return
        for index, micro_batch in enumerate(micro_batches):
            if trains:
                self._set_fsdp_sync(is_last=index + 1 == len(micro_batches))
            loss = use(self._forward(micro_batch), micro_batch)
            if loss is not None:
                torch.autograd.backward(loss)

    def _set_fsdp_sync(self, *, is_last: bool) -> None:
        """Keeps gradients and unsharded weights until the last micro-batch on one data-parallel rank.

        On several ranks FSDP reduces and frees after each micro-batch, which bounds memory by the shards.
        """
        if self.mesh.single_dp_rank:
            for part in self.model.parts:
                if isinstance(part, FSDPModule):
                    part.set_requires_gradient_sync(is_last)
                    part.set_reshard_after_backward(is_last)

    def _forward(self, micro_batch: MicroBatch) -> HeadOutput:
        """Returns the head's output; gradients flow where grad mode is on."""
        masks = attention_masks(self.model.inner_attention, micro_batch.visible_until)
        with self.model.head.with_query(self.head_query(micro_batch)):
            output: HeadOutput = self.model.parts[0](
                micro_batch.tokens, positions=micro_batch.positions, attention_masks=masks
            )
        return output

    def head_query(self, micro_batch: MicroBatch) -> HeadQuery:
        """Returns the query to the head: the labels' log-probs, and the candidates' if the batch has any."""
        batch, index = micro_batch.batch, micro_batch.scatter_index
        ids = batch["labels"].flatten()[index].unsqueeze(-1)
        if "candidate_ids" in batch:
            ids = torch.cat([ids, batch["candidate_ids"].flatten(0, 1)[index]], dim=-1)
        heads = batch.get("head_id", None)
        if heads is not None:
            heads = heads[index // batch["labels"].shape[1]]
        return HeadQuery(
            micro_batch.gather_index, ids, self._temperature(), self._kernels, self._top_k, heads
        )

    @torch.no_grad()
    def score(self, batch: TensorDict, keys: Sequence[str] = ("logprob",)) -> dict[str, torch.Tensor]:
        """Returns {key: [N, L(, K)] on the CPU, 0 where masked} at the current weights; a collective.

        The values equal those of the update's first forward pass bit for bit if the update gets the same
        rows and no group is larger than a micro-batch.

        Args:
            batch: this rank's N rows: input_ids, labels, loss_mask, group_id.
            keys: fields of PolicyOutputs; with top_k also ``topk_ids``, int64, and ``topk_logprob``,
                [N, L, top_k].
        """
        used = ("input_ids", "labels", "loss_mask", "group_id", "candidate_ids", "head_id")
        rows = batch.select(*(key for key in used if key in batch))
        shape = rows["labels"].shape
        scored: dict[str, torch.Tensor] = {}

        def use(output: HeadOutput, micro_batch: MicroBatch) -> None:
            values = policy_outputs(output, micro_batch)._asdict() | topk_outputs(output, micro_batch)
            for key in keys:
                value = values.get(key)
                if value is None:
                    raise ValueError(f"cannot score {key!r}: this model does not compute it.")
                target = scored.setdefault(key, torch.zeros((*shape, *value.shape[2:]), dtype=value.dtype))
                if len(micro_batch.rows):
                    target[micro_batch.rows, : value.shape[1]] = value.cpu()

        self._run(self.micro_batches(rows), use)
        self.reshard()
        return from_last_stage(scored, self.mesh.pp_group)

    def reshard(self) -> None:
        """Frees unsharded weights, so that the next forward pass gathers the current ones."""
        for module in self.model.fsdp_modules():
            module.reshard()


def policy_outputs(output: HeadOutput, micro_batch: MicroBatch) -> PolicyOutputs:
    """Returns a head's output for the loss tokens, scattered to their positions in [B, L].

    Args:
        output: a policy's statistics, the values [S] of a value model, whose logprob is 0 everywhere, or
            both.
        micro_batch: gives the positions.
    """
    if isinstance(output, ActorCriticOutput):
        return policy_outputs(output.tokens, micro_batch)._replace(
            value=scatter_to_positions(output.value, micro_batch)
        )
    if isinstance(output, torch.Tensor):
        value = scatter_to_positions(output, micro_batch)
        return PolicyOutputs(logprob=torch.zeros_like(value), value=value)
    logprob = scatter_to_positions(output.logprob, micro_batch)
    return PolicyOutputs(
        logprob=logprob[..., 0],
        entropy=scatter_to_positions(output.entropy, micro_batch),
        sum_pi_squared=scatter_to_positions(output.sum_pi_squared, micro_batch),
        candidate_logprob=logprob[..., 1:] if logprob.shape[-1] > 1 else None,
    )


def topk_outputs(output: HeadOutput, micro_batch: MicroBatch) -> dict[str, torch.Tensor]:
    """Returns the top-k ids and log-probs at their positions in [B, L, K]; empty without top_k."""
    if not isinstance(output, TokenStatistics) or not output.topk_ids.shape[-1]:
        return {}
    return {
        "topk_ids": scatter_to_positions(output.topk_ids, micro_batch),
        "topk_logprob": scatter_to_positions(output.topk_logprob, micro_batch),
    }


def scatter_to_positions(value: torch.Tensor, micro_batch: MicroBatch) -> torch.Tensor:
    """Returns values [S, ...] of the loss tokens at their positions in [B, L, ...], 0 elsewhere."""
    shape = micro_batch.batch["labels"].shape
    flat = value.new_zeros(shape.numel(), *value.shape[1:])
    return flat.index_copy(0, micro_batch.scatter_index, value).view(*shape, *value.shape[1:])


@contextmanager
def unsharded_parameters(scoring_model: ScoringModel) -> Iterator[None]:
    """Keeps a model's full parameters within the block, without gradients; no collective runs inside."""
    modules = scoring_model.model.fsdp_modules()
    # torch 2.13 has no public method for it.
    groups = [module._get_fsdp_state()._fsdp_param_groups for module in modules]
    reshards = [any(group.post_forward_mesh_info for group in each) for each in groups]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, reshard in zip(modules, reshards, strict=True):
            module.set_reshard_after_forward(reshard, recurse=False)
        scoring_model.reshard()
