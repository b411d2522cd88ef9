"""The trainer's weights into a running vLLM model, tensor by tensor, checked against what the model holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from titanrl.errors import ConfigError

__all__ = ["Repacker", "load_documented"]

Weights = Iterable[tuple[str, "torch.Tensor"]]


class Slot(NamedTuple):
    """Where a tensor of the trainer goes: rows from ``start`` of a parameter of one of vLLM's modules."""

    module: str
    parameter: str
    start: int
    shape: tuple[int, ...]
    """Of the whole tensor."""
    part: tuple[slice, ...]
    """What of it this rank has, under tensor parallelism."""


class Repacker:
    """Writes weights into a vLLM model on the CPU and packs each layer again for its kernels.

    After loading, vLLM 0.32 packs each linear weight and drops the parameter, so the model's ``load_weights``
    fails, and ``reload_weights`` leaves a tied head at its old packed weight. Here the tensors of a fused
    layer are put together, the layer's own packing runs on them, and a tied head is packed from the new
    embedding.
    The weights of one layer exist twice at a time.

    Args:
        model: vLLM's, or this rank's part of it: a dense model of linears, embeddings and norms.

    Raises:
        ConfigError: a mixture of experts.
    """

    def __init__(self, model: Any) -> None:
        self._modules: dict[str, Any] = {}
        self._spare: list[torch.Tensor] = []
        self._lent: dict[int, torch.Tensor] = {}
        self.slots: dict[str, Slot] = {}
        """Hugging Face name -> place; the names are the manifest."""
        self._head = model.lm_head
        self._is_tied = False
        seen: set[int] = set()
        packed = getattr(model, "packed_modules_mapping", {})
        for name, module in model.named_modules():
            own = dict(module.named_parameters(recurse=False))
            if own and all(id(parameter) in seen for parameter in own.values()):
                self._is_tied |= module is model.lm_head
                continue
            seen.update(map(id, own.values()))
            if hasattr(module, "org_vocab_size") and module is not self._head:
                # vLLM packs embeddings too, and never reads the copy: better gone than stale.
                vars(module).pop("cpu_linear", None)
            for parameter, value in own.items():
                self._modules[name] = module
                self._describe(name, parameter, value, packed.get(name.rpartition(".")[2], []))

    def _describe(self, name: str, parameter: str, value: torch.Tensor, parts: list[str]) -> None:
        module = self._modules[name]
        if parameter.startswith(("w13_", "w2_")):
            raise ConfigError(
                "[sampler] name must be 'torch' for a mixture of experts on a CPU, got 'vllm', whose experts "
                "cannot be given new weights there."
            )
        if not _is_linear(module):
            rows, shape = slice(0, len(value)), tuple(value.shape)
            if hasattr(module, "org_vocab_size"):  # an embedding is padded
                own = module.shard_indices
                rows = slice(own.org_vocab_start_index, own.org_vocab_end_index)
                shape = (module.org_vocab_size, *shape[1:])
            self.slots[f"{name}.{parameter}"] = Slot(name, parameter, 0, shape, (rows,))
            return
        rank, ranks = module.tp_rank, module.tp_size
        columns: tuple[slice, ...] = ()
        splits_rows, width = not hasattr(module, "input_is_parallel"), module.input_size_per_partition
        if parameter == "weight":  # the packed weight left an empty parameter
            columns = (slice(0, width) if splits_rows else slice(rank * width, (rank + 1) * width),)
        start, parent = 0, name.rpartition(".")[0]
        names = [f"{parent}.{part}" for part in parts] or [name]
        for part, size in zip(names, module.output_partition_sizes, strict=True):
            first = rank * size if splits_rows else 0
            shape = (size * ranks if splits_rows else size, *([module.input_size] if columns else []))
            cut = (slice(first, first + size), *columns)
            self.slots[f"{part}.{parameter}"] = Slot(name, parameter, start, shape, cut)
            start += size

    def load(self, weights: Weights) -> None:
        """Replaces every weight.

        Raises:
            ValueError: a name that is unknown, repeated or missing, or a wrong shape. Other weights may be
                replaced by then.
        """
        # No decorator: it would load torch when this file is only listed.
        with torch.no_grad():
            self._load(weights)

    def _load(self, weights: Weights) -> None:
        waiting = {
            name: {key for key in self.slots if self.slots[key].module == name} for name in self._modules
        }
        buffers: dict[str, dict[str, torch.Tensor]] = {}
        self._lent.clear()
        for name, tensor in weights:
            slot = self.slots.get(name)
            if slot is None:
                raise ValueError(
                    f"vLLM's model has no weight {name!r}; the trainer's is another architecture."
                )
            if name not in waiting[slot.module]:
                raise ValueError(f"weight {name!r} came twice.")
            if tuple(tensor.shape) != slot.shape:
                raise ValueError(f"weight {name!r} must be {slot.shape} for vLLM, got {tuple(tensor.shape)}.")
            waiting[slot.module].discard(name)
            tensor = tensor[slot.part]
            held = buffers.setdefault(slot.module, {})
            if slot.parameter not in held:
                held[slot.parameter] = self._target(slot, tensor)
            target = held[slot.parameter][slot.start : slot.start + len(tensor)]
            if target.data_ptr() != tensor.data_ptr():
                target.copy_(tensor)
            if not waiting[slot.module]:
                self._install(self._modules[slot.module], buffers.pop(slot.module))
        _refuse_missing(set().union(*waiting.values()))
        if self._is_tied:
            vars(self._head).pop("cpu_linear", None)
            self._head.quant_method.process_weights_after_loading(self._head)

    def _target(self, slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
        """Returns where a parameter is put together: in its place, if it is kept beside its packed form."""
        parameter = getattr(self._modules[slot.module], slot.parameter)
        if parameter.numel():
            return parameter.data  # type: ignore[no-any-return]
        rows = sum(self._modules[slot.module].output_partition_sizes)
        if rows == len(tensor) and tensor.dtype == parameter.dtype and tensor.is_contiguous():
            return tensor  # packing only reads it
        width = tensor.shape[1]
        size = rows * width
        # Kept from load to load, as fresh memory would cost a page fault for every 4 KiB.
        fitting = [index for index, spare in enumerate(self._spare) if spare.numel() >= size]
        whole = self._spare.pop(fitting[0]) if fitting else torch.empty(size, dtype=parameter.dtype)
        self._lent[whole.data_ptr()] = whole
        return whole[:size].view(rows, width)

    def _install(self, module: Any, tensors: dict[str, torch.Tensor]) -> None:
        if _is_linear(module):
            for name, tensor in tensors.items():
                setattr(module, name, torch.nn.Parameter(tensor, requires_grad=False))
        if _is_linear(module) or module is self._head:
            vars(module).pop("cpu_linear", None)  # the old packed weight goes before the new one comes
            module.quant_method.process_weights_after_loading(module)
        for tensor in tensors.values():
            if tensor.data_ptr() in self._lent:
                self._spare.append(self._lent.pop(tensor.data_ptr()))


def load_documented(model: Any, weights: Weights) -> None:
    """Replaces every weight through the model's ``load_weights``: right where nothing is packed, on a GPU.

    Raises:
        ValueError: a parameter got no weight, or a name is unknown.
    """
    names: list[str] = []

    def counted() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            names.append(name)
            yield name, tensor

    try:
        loaded = model.load_weights(counted())
    except KeyError as error:
        raise ValueError(
            f"vLLM's model has no weight {error}; the trainer's is another architecture."
        ) from error
    if loaded is None:
        raise ValueError(
            f"{type(model).__name__} doesn't say which of {len(names)} weights it took; use another model."
        )
    _refuse_missing({name for name, _ in model.named_parameters()} - set(loaded))


def _is_linear(module: Any) -> bool:
    return hasattr(module, "input_size_per_partition") and not hasattr(module, "org_vocab_size")


def _refuse_missing(names: set[str]) -> None:
    if names:
        shown = ", ".join(sorted(names)[:3])
        raise ValueError(f"{len(names)} weights of vLLM's model were not sent, {shown} among them.")
