"""Weights out of any mesh by their Hugging Face names, one full tensor after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from titanrl.engine.build import Model

__all__ = ["parameters", "stream"]


def stream(
    model: Model, pp_group: dist.ProcessGroup | None, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (Hugging Face name, full tensor) on every rank, parameter by parameter: see ``parameters``."""
    for name, value in parameters(model, pp_group, dtype):
        yield from model.adapter.to_hf({name: value}).items()


@torch.no_grad()
def parameters(
    model: Model, pp_group: dist.ProcessGroup | None, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (TorchTitan's name, full tensor) on every rank, one after the other; a collective.

    Of what is sharded at most one exists in full at a time, so consume it whole. A tied head is not yielded.

    Args:
        dtype: to which shards are rounded before they travel; None: they travel as they are.
    """
    blocks = ["tok_embeddings", *(f"layers.{index}" for index in range(model.config.num_layers)), "norm"]
    if not model.tied:
        blocks.append("lm_head")
    for module in model.fsdp_modules():
        module.reshard()
    for name in blocks:
        block = next((found for part in model.parts if (found := _block(part, name)) is not None), None)
        tensors = iter(()) if block is None else _tensors(block, f"{name}.", dtype)
        if pp_group is not None:
            tensors = _from_owner(tensors, block is not None, pp_group, dtype)
        yield from tensors


def _block(part: torch.nn.Module, name: str) -> torch.nn.Module | None:
    """Returns the module of that name, unless another stage has it."""
    found: torch.nn.Module | None = part
    for step in name.split("."):
        found = None if found is None else dict(found.named_children()).get(step)
    return found


def _tensors(
    module: torch.nn.Module, prefix: str, dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the state of ``module`` by name, each tensor whole, a submodule's before the next one's."""
    module = getattr(module, "_checkpoint_wrapped_module", module)
    if module._state_dict_hooks:  # It writes several tensors for one of its own.
        state = module.state_dict(prefix=prefix)
        while state:
            name = next(iter(state))
            yield name, _whole(state.pop(name), dtype)
        return
    own: dict[str, torch.Tensor] = {}
    module._save_to_state_dict(own, prefix, keep_vars=False)
    for name, value in own.items():
        yield name, _whole(value, dtype)
    for name, child in module.named_children():
        yield from _tensors(child, f"{prefix}{name}.", dtype)


def _whole(value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    if not isinstance(value, DTensor):
        return value
    if value.device_mesh.size() == 1:
        return value.to_local()
    sent: Any = value.to(dtype=dtype)
    return sent.full_tensor()  # type: ignore[no-any-return]


def _from_owner(
    tensors: Iterator[tuple[str, torch.Tensor]],
    is_owner: bool,
    group: dist.ProcessGroup,
    dtype: torch.dtype | None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of the pipeline stage that has them, on every stage."""
    owners: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(owners, is_owner, group=group)
    owner = owners.index(True)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    while True:
        mine = next(tensors, None)
        value = None if mine is None else mine[1].to(dtype=dtype).contiguous()
        box = [None if mine is None or value is None else (mine[0], value.shape, value.dtype)]
        dist.broadcast_object_list(box, group=group, group_src=owner)
        if box[0] is None:
            return
        name, shape, sent = box[0]
        if value is None:
            value = torch.empty(shape, dtype=sent, device=device)
        dist.broadcast(value, group=group, group_src=owner)
        yield name, value
