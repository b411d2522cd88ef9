"""A model with its forward pass: micro-batches in, PolicyOutputs out.

The policy, the critic and the frozen models are roles.
"""

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
from titanrl.engine.pipeline import line_length, run_pipeline, scheduled
from titanrl.engine.reduce import from_last_stage
from titanrl.ops.logprob import TokenStatistics
from titanrl.ops.row_kernels import EAGER, Kernels
from titanrl.protocols import PolicyOutputs

__all__ = ["ScoringModel", "gathered"]

HeadAnswer: TypeAlias = TokenStatistics | torch.Tensor | ActorCriticOutput
"""What a head answers: a policy's statistics, the values [S] of a value model, or both."""


class ScoringModel:
    """A model's outputs: log-probs at the sampling temperature, or the values of a value model."""

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
        """Args:
        max_tokens: of a micro-batch. top_k: likeliest tokens of each trained position that ``score`` knows.
        """
        self.model = model
        self.mesh = mesh
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._kernels = kernels
        self._top_k = top_k

    def micro_batches(self, batch: TensorDict, *, whole_groups: bool = False) -> list[MicroBatch]:
        """Returns this rank's rows as micro-batches; every data-parallel rank gets the same number of them,
        >= 1.

        A rank with fewer rows gets blanks: collectives inside the model need all ranks.

        Args:
            whole_groups: whether rows of a group are compared with each other, and must stay together.
        """
        device = self.mesh.device
        chosen = assign_micro_batches(batch, self._max_tokens, whole_groups=whole_groups)
        parts = [pack_sequences(batch, rows, device) for rows in chosen]
        longest = max((part.tokens.shape[1] for part in parts), default=1)
        sizes = torch.tensor([max(1, len(parts)), longest], device=device)
        if self.mesh.dp_group is not None:
            dist.all_reduce(sizes, dist.ReduceOp.MAX, group=self.mesh.dp_group)
        count, longest = sizes.tolist()
        tp, pp = self.mesh.dims.tp, self.mesh.dims.pp
        total = scheduled(count, ranks=pp, stages=len(self.model.stages))
        parts += [dummy_micro_batch(batch, device) for _ in range(total - len(parts))]
        if self.model.stages:
            return [pad_to(part, line_length(longest, tp)) for part in parts]
        return [pad_to(part, -(-part.tokens.shape[1] // tp) * tp) for part in parts]

    def run(
        self,
        micro_batches: Sequence[MicroBatch],
        use: Callable[[PolicyOutputs, MicroBatch], torch.Tensor | None],
    ) -> None:
        """Computes each micro-batch and hands its outputs to ``use``, on ranks that hold the head.

        Where ``use`` returns a scalar, it is back-propagated before the next micro-batch is computed.
        """
        self._run(micro_batches, lambda answer, micro_batch: use(outputs(answer, micro_batch), micro_batch))

    def _run(
        self,
        micro_batches: Sequence[MicroBatch],
        use: Callable[[HeadAnswer, MicroBatch], torch.Tensor | None],
    ) -> None:
        trains = torch.is_grad_enabled()
        if self.model.stages:

            def hook(micro_batch: MicroBatch, hidden: torch.Tensor) -> torch.Tensor:
                with self.model.head.request(self.request(micro_batch)):
                    answer = self.model.head(hidden)
                loss = use(answer, micro_batch)
                return torch.zeros((), device=hidden.device) if loss is None else loss

            run_pipeline(self.model, micro_batches, hook, trains=trains)
            return
        for index, micro_batch in enumerate(micro_batches):
            if trains:
                self._keep_gathered(index + 1 < len(micro_batches))
            loss = use(self._forward(micro_batch), micro_batch)
            if loss is not None:
                torch.autograd.backward(loss)

    def _keep_gathered(self, more: bool) -> None:
        """On one data-parallel rank, gradients and gathered weights stay as they are until the last
        micro-batch.

        On several, FSDP frees and reduces after each, which bounds memory by the shards.
        """
        if self.mesh.single_dp_rank:
            for part in self.model.parts:
                if isinstance(part, FSDPModule):
                    part.set_requires_gradient_sync(not more)
                    part.set_reshard_after_backward(not more)

    def _forward(self, micro_batch: MicroBatch) -> HeadAnswer:
        """Returns what the head answers; gradients flow where grad mode is on."""
        masks = attention_masks(self.model.inner_attention, micro_batch.visible_until)
        with self.model.head.request(self.request(micro_batch)):
            answer: HeadAnswer = self.model.parts[0](
                micro_batch.tokens, positions=micro_batch.positions, attention_masks=masks
            )
        return answer

    def request(self, micro_batch: MicroBatch) -> HeadQuery:
        """Returns what the head is asked for.

        The labels' log-probs, and those of candidates if the batch has any.
        """
        batch, place = micro_batch.batch, micro_batch.place
        ids = batch["labels"].flatten()[place].unsqueeze(-1)
        if "candidate_ids" in batch:
            ids = torch.cat([ids, batch["candidate_ids"].flatten(0, 1)[place]], dim=-1)
        heads = batch.get("head_id", None)
        if heads is not None:
            heads = heads[place // batch["labels"].shape[1]]
        return HeadQuery(micro_batch.chosen, ids, self._temperature(), self._kernels, self._top_k, heads)

    @torch.no_grad()
    def score(self, batch: TensorDict, keys: Sequence[str] = ("logprob",)) -> dict[str, torch.Tensor]:
        """Returns {key: [N, L(, K)] on the CPU, 0 where masked} at the current weights; a collective.

        The numbers are those of the update's first forward pass, bit for bit, when it is given the same rows
        and no group is larger than a micro-batch.

        Args:
            batch: this rank's N rows: input_ids, labels, loss_mask, group_id.
            keys: fields of PolicyOutputs; of a role with top_k also ``topk_ids``, int64, and
                ``likeliest_logprob``, [N, L, top_k].
        """
        read = ("input_ids", "labels", "loss_mask", "group_id", "candidate_ids", "head_id")
        needed = [key for key in read if key in batch]
        rows = batch.select(*needed)
        shape = rows["labels"].shape
        scored: dict[str, torch.Tensor] = {}

        def use(answer: HeadAnswer, micro_batch: MicroBatch) -> None:
            values = outputs(answer, micro_batch)._asdict() | likeliest(answer, micro_batch)
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
        """Frees gathered weights, so that the next forward pass gathers the weights as they are then."""
        for module in self.model.fsdp_modules():
            module.reshard()


def outputs(answer: HeadAnswer, micro_batch: MicroBatch) -> PolicyOutputs:
    """Returns what a head answered for the chosen tokens at their places in [B, L].

    Args:
        answer: a policy's statistics, the values [S] of a value model, whose logprob is 0 everywhere, or
            both.
    """
    if isinstance(answer, ActorCriticOutput):
        return outputs(answer.tokens, micro_batch)._replace(value=at_places(answer.value, micro_batch))
    if isinstance(answer, torch.Tensor):
        value = at_places(answer, micro_batch)
        return PolicyOutputs(logprob=torch.zeros_like(value), value=value)
    logprob = at_places(answer.logprob, micro_batch)
    return PolicyOutputs(
        logprob=logprob[..., 0],
        entropy=at_places(answer.entropy, micro_batch),
        sum_pi_squared=at_places(answer.sum_pi_squared, micro_batch),
        candidate_logprob=logprob[..., 1:] if logprob.shape[-1] > 1 else None,
    )


def likeliest(answer: HeadAnswer, micro_batch: MicroBatch) -> dict[str, torch.Tensor]:
    """Returns the likeliest tokens and their log-probs at their places in [B, L, K]; nothing if none were
    asked for."""
    if not isinstance(answer, TokenStatistics) or not answer.topk_ids.shape[-1]:
        return {}
    return {
        "topk_ids": at_places(answer.topk_ids, micro_batch),
        "likeliest_logprob": at_places(answer.likeliest_logprob, micro_batch),
    }


def at_places(value: torch.Tensor, micro_batch: MicroBatch) -> torch.Tensor:
    """Returns [S, ...] numbers of the chosen tokens at their places in [B, L, ...], 0 elsewhere."""
    shape = micro_batch.batch["labels"].shape
    flat = value.new_zeros(shape.numel(), *value.shape[1:])
    return flat.index_copy(0, micro_batch.place, value).view(*shape, *value.shape[1:])


@contextmanager
def gathered(role: ScoringModel) -> Iterator[None]:
    """Keeps a role's weights whole within the block, without gradients; no collective happens inside."""
    modules = role.model.fsdp_modules()
    # Read from FSDP's own state: there is no public question for it in torch 2.13.
    groups = [module._get_fsdp_state()._fsdp_param_groups for module in modules]
    frees = [any(group.post_forward_mesh_info for group in each) for each in groups]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, free in zip(modules, frees, strict=True):
            module.set_reshard_after_forward(free, recurse=False)
        role.reshard()
