"""Weights out of any mesh by their Hugging Face names, one full tensor after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from titanrl.engine.heads.shared import VALUE
from titanrl.engine.weights.gather import gather

if TYPE_CHECKING:
    from titanrl.engine.build import Model

__all__ = ["parameters", "precision", "iter_state_dict"]

UNROUNDED = ("expert_bias", "e_score_correction_bias")
"""What chooses experts, by either name: rounded, it would choose others."""


def iter_state_dict(
    model: Model, pp_group: dist.ProcessGroup | None, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (Hugging Face name, full tensor) on every rank, parameter by parameter: see ``parameters``."""
    for name, value in parameters(model, pp_group, dtype):
        named = model.adapter.to_hf({name: value})
        del value  # What is reordered is a copy.
        yield from _drain(named)


@torch.no_grad()
def parameters(
    model: Model, pp_group: dist.ProcessGroup | None, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (TorchTitan's name, full tensor) on every rank, one after the other; a collective.

    Of what is sharded at most one exists in full at a time, so consume it whole. A tied head is not yielded,
    nor is a critic's on the policy's body.

    Args:
        dtype: to which shards are rounded before they travel; None: they travel as they are.
    """
    blocks = ["tok_embeddings", *(f"layers.{index}" for index in range(model.config.num_layers)), "norm"]
    if not model.tied:
        blocks.append("lm_head")
    for module in model.fsdp_modules():
        module.reshard()
    found = [_block(model.parts, name) for name in blocks]
    if pp_group is None:
        for name, block in zip(blocks, found, strict=True):
            assert block is not None
            yield from _tensors(block, f"{name}.", dtype)
        return
    held: list[Any] = [None] * dist.get_world_size(pp_group)
    dist.all_gather_object(held, [block is not None for block in found], group=pp_group)
    for number, (name, block) in enumerate(zip(blocks, found, strict=True)):
        tensors = iter(()) if block is None else _tensors(block, f"{name}.", dtype)
        owner = next(stage for stage, blocks_held in enumerate(held) if blocks_held[number])
        yield from _from_owner(tensors, owner, pp_group, dtype)


def precision(name: str, dtype: torch.dtype | None) -> torch.dtype | None:
    """Returns what the tensor of that name may be rounded to; None: it stays as it is."""
    return None if any(part in name for part in UNROUNDED) else dtype


def _block(parts: Iterable[torch.nn.Module], name: str) -> torch.nn.Module | None:
    """Returns the module of that name, unless another stage has it."""
    for part in parts:
        found: torch.nn.Module | None = part
        for step in name.split("."):
            found = None if found is None else dict(found.named_children()).get(step)
        if found is not None:
            return found
    return None


def _tensors(
    module: torch.nn.Module, prefix: str, dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the state of ``module`` by name, each tensor whole, a submodule's before the next one's."""
    module = getattr(module, "_checkpoint_wrapped_module", module)
    if not module._state_dict_hooks:
        yield from _own(module, prefix, dtype)
        return
    # They make several tensors of one, and would gather it whole unrounded if it came in shards.
    state = dict(_own(module, prefix, dtype))
    for hook in module._state_dict_hooks.values():
        hook(module, state, prefix, {})
    yield from _drain(state)


def _own(
    module: torch.nn.Module, prefix: str, dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    own: dict[str, torch.Tensor] = {}
    module._save_to_state_dict(own, prefix, keep_vars=False)
    for name, value in own.items():
        yield name, gather(value, precision(name, dtype)) if isinstance(value, DTensor) else value
    for name, child in module.named_children():
        if f"{prefix}{name}" != VALUE:
            yield from _tensors(child, f"{prefix}{name}.", dtype)


def _drain(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the items, and holds none that it has yielded."""
    while tensors:
        name = next(iter(tensors))
        yield name, tensors.pop(name)


def _from_owner(
    tensors: Iterator[tuple[str, torch.Tensor]],
    owner: int,
    group: dist.ProcessGroup,
    dtype: torch.dtype | None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of the pipeline stage that has them, on every stage."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    while True:
        name, value = next(tensors, ("", None))
        if value is not None:
            value = value.to(dtype=precision(name, dtype)).contiguous()
        box = [None if value is None else (name, value.shape, value.dtype)]
        dist.broadcast_object_list(box, group=group, group_src=owner)
        if box[0] is None:
            return
        name, shape, sent = box[0]
        if value is None:
            value = torch.empty(shape, dtype=sent, device=device)
        dist.broadcast(value, group=group, group_src=owner)
        yield name, value
        del value
