"""Streams the weights from any mesh by their Hugging Face names, one full tensor at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from titanrl.engine.heads.shared import VALUE
from titanrl.engine.weights.gather import gather

if TYPE_CHECKING:
    from titanrl.engine.model import Model

__all__ = ["parameters", "precision", "iter_state_dict"]

UNROUNDED = ("expert_bias", "e_score_correction_bias")
"""Biases that decide which experts are chosen, by either name: rounding would change the choice."""


def iter_state_dict(
    model: Model, pp_group: dist.ProcessGroup | None, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (Hugging Face name, full tensor) on every rank, parameter by parameter: see ``parameters``."""
    for name, value in parameters(model, pp_group, dtype):
        named = model.adapter.to_hf({name: value})
        del value  # Reordered tensors are copies.
        yield from _drain(named)


@torch.no_grad()
def parameters(
    model: Model, pp_group: dist.ProcessGroup | None, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (TorchTitan's name, full tensor) on every rank, one at a time; a collective.

    At most one sharded tensor exists in full at a time; exhaust the iterator. A tied head is not yielded, nor
    is a critic's on the policy's backbone.

    Args:
        model: on the mesh.
        pp_group: of its pipeline stages; None: no pipeline parallelism.
        dtype: to which shards are rounded before they are sent; None: they keep theirs.
    """
    blocks = ["tok_embeddings", *(f"layers.{index}" for index in range(model.config.num_layers)), "norm"]
    if not model.tied:
        blocks.append("lm_head")
    for module in model.fsdp_modules():
        module.reshard()
    modules = [_block(model.parts, name) for name in blocks]
    if pp_group is None:
        for name, block in zip(blocks, modules, strict=True):
            assert block is not None
            yield from _tensors(block, f"{name}.", dtype)
        return
    has_blocks: list[Any] = [None] * dist.get_world_size(pp_group)
    dist.all_gather_object(has_blocks, [block is not None for block in modules], group=pp_group)
    for index, (name, block) in enumerate(zip(blocks, modules, strict=True)):
        tensors = iter(()) if block is None else _tensors(block, f"{name}.", dtype)
        source_rank = next(stage for stage, has_block in enumerate(has_blocks) if has_block[index])
        yield from _broadcast(tensors, source_rank, pp_group, dtype)


def precision(name: str, dtype: torch.dtype | None) -> torch.dtype | None:
    """Returns the dtype to which the tensor of that name may be rounded; None: it keeps its own."""
    return None if any(part in name for part in UNROUNDED) else dtype


def _block(parts: Iterable[torch.nn.Module], name: str) -> torch.nn.Module | None:
    """Returns the module of that name; None: another stage has it."""
    for part in parts:
        module: torch.nn.Module | None = part
        for child in name.split("."):
            module = None if module is None else dict(module.named_children()).get(child)
        if module is not None:
            return module
    return None


def _tensors(
    module: torch.nn.Module, prefix: str, dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the state of ``module`` by name as full tensors, submodule by submodule."""
    module = getattr(module, "_checkpoint_wrapped_module", module)
    if not module._state_dict_hooks:
        yield from _gathered_state(module, prefix, dtype)
        return
    # A hook makes several tensors of one; given shards it would gather the full tensor without rounding.
    state = dict(_gathered_state(module, prefix, dtype))
    for hook in module._state_dict_hooks.values():
        hook(module, state, prefix, {})
    yield from _drain(state)


def _gathered_state(
    module: torch.nn.Module, prefix: str, dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    state: dict[str, torch.Tensor] = {}
    module._save_to_state_dict(state, prefix, keep_vars=False)
    for name, value in state.items():
        yield name, gather(value, precision(name, dtype)) if isinstance(value, DTensor) else value
    for name, child in module.named_children():
        if f"{prefix}{name}" != VALUE:
            yield from _tensors(child, f"{prefix}{name}.", dtype)


def _drain(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the items and drops each one once it is yielded."""
    while tensors:
        name = next(iter(tensors))
        yield name, tensors.pop(name)


def _broadcast(
    tensors: Iterator[tuple[str, torch.Tensor]],
    source_rank: int,
    group: dist.ProcessGroup,
    dtype: torch.dtype | None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of the pipeline stage ``source_rank`` on every stage."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    while True:
        name, value = next(tensors, ("", None))
        if value is not None:
            value = value.to(dtype=precision(name, dtype)).contiguous()
        header = [None if value is None else (name, value.shape, value.dtype)]
        dist.broadcast_object_list(header, group=group, group_src=source_rank)
        if header[0] is None:
            return
        name, shape, sent_dtype = header[0]
        if value is None:
            value = torch.empty(shape, dtype=sent_dtype, device=device)
        dist.broadcast(value, group=group, group_src=source_rank)
        yield name, value
        del value
