"""Weight updates of a running vLLM model, tensor by tensor, checked against the model's own weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from titanrl.errors import ConfigError

__all__ = ["Repacker", "load_unpacked"]

Weights = Iterable[tuple[str, "torch.Tensor"]]


class Slot(NamedTuple):
    """Destination of a weight: rows from ``start`` of a parameter of one of vLLM's modules."""

    module: str
    parameter: str
    start: int
    shape: tuple[int, ...]
    """Shape of the unsharded tensor."""
    part: tuple[slice, ...]
    """Slice of the tensor on this rank, under tensor parallelism."""


class Repacker:
    """Writes weights into a vLLM model on a CPU and packs each layer again for its kernels.

    After loading, vLLM 0.32 packs each linear weight and drops the parameter. The model's ``load_weights``
    fails then, and ``reload_weights`` leaves a tied head at its old packed weight. This class assembles the
    tensors of a fused layer, runs the layer's own packing on them, and packs a tied head from the new
    embedding. The weights of one layer exist twice at a time.
    """

    def __init__(self, model: Any) -> None:
        """Collects the model's weights.

        Args:
            model: vLLM's model, or this rank's shard: a dense model of linear, embedding and norm modules.

        Raises:
            ConfigError: the model is a mixture of experts.
        """
        self._modules: dict[str, Any] = {}
        self._spare: list[torch.Tensor] = []
        self._borrowed: dict[int, torch.Tensor] = {}
        self.slots: dict[str, Slot] = {}
        """Hugging Face name -> slot, for every weight of the model."""
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
                # vLLM also packs embeddings but never reads the copy; drop it so that it cannot get stale.
                vars(module).pop("cpu_linear", None)
            for parameter, value in own.items():
                self._modules[name] = module
                self._describe(name, parameter, value, packed.get(name.rpartition(".")[2], []))

    def _describe(self, name: str, parameter: str, value: torch.Tensor, parts: list[str]) -> None:
        module = self._modules[name]
        if parameter.startswith(("w13_", "w2_")):
            raise ConfigError(
                "[sampler] name must be 'torch' for a mixture of experts on a CPU, got 'vllm', which "
                "cannot update the weights of experts there."
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

        Args:
            weights: (Hugging Face name, tensor) of every weight.

        Raises:
            ValueError: a name that is unknown, repeated or missing, or a wrong shape. Other weights may be
                replaced by then.
        """
        # Not a decorator, which would import torch when the module is imported.
        with torch.no_grad():
            self._load(weights)

    def _load(self, weights: Weights) -> None:
        waiting = {
            name: {key for key in self.slots if self.slots[key].module == name} for name in self._modules
        }
        buffers: dict[str, dict[str, torch.Tensor]] = {}
        self._borrowed.clear()
        for name, tensor in weights:
            slot = self.slots.get(name)
            if slot is None:
                raise ValueError(
                    f"vLLM's model has no weight {name!r}; the trainer's model has another architecture."
                )
            if name not in waiting[slot.module]:
                raise ValueError(f"weight {name!r} was sent twice.")
            if tuple(tensor.shape) != slot.shape:
                raise ValueError(f"weight {name!r} must be {slot.shape} for vLLM, got {tuple(tensor.shape)}.")
            waiting[slot.module].discard(name)
            tensor = tensor[slot.part]
            parameters = buffers.setdefault(slot.module, {})
            if slot.parameter not in parameters:
                parameters[slot.parameter] = self._target(slot, tensor)
            target = parameters[slot.parameter][slot.start : slot.start + len(tensor)]
            if target.data_ptr() != tensor.data_ptr():
                target.copy_(tensor)
            if not waiting[slot.module]:
                self._install(self._modules[slot.module], buffers.pop(slot.module))
        _refuse_missing(set().union(*waiting.values()))
        if self._is_tied:
            vars(self._head).pop("cpu_linear", None)
            self._head.quant_method.process_weights_after_loading(self._head)

    def _target(self, slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the buffer of a parameter: the parameter itself if it is kept beside its packed form."""
        parameter = getattr(self._modules[slot.module], slot.parameter)
        if parameter.numel():
            return parameter.data  # type: ignore[no-any-return]
        rows = sum(self._modules[slot.module].output_partition_sizes)
        if rows == len(tensor) and tensor.dtype == parameter.dtype and tensor.is_contiguous():
            return tensor  # packing only reads it
        width = tensor.shape[1]
        size = rows * width
        # Reused by every load, because fresh memory costs a page fault per 4 KiB.
        fitting = [index for index, spare in enumerate(self._spare) if spare.numel() >= size]
        buffer = self._spare.pop(fitting[0]) if fitting else torch.empty(size, dtype=parameter.dtype)
        self._borrowed[buffer.data_ptr()] = buffer
        return buffer[:size].view(rows, width)

    def _install(self, module: Any, tensors: dict[str, torch.Tensor]) -> None:
        if _is_linear(module):
            for name, tensor in tensors.items():
                setattr(module, name, torch.nn.Parameter(tensor, requires_grad=False))
        if _is_linear(module) or module is self._head:
            vars(module).pop("cpu_linear", None)  # free the old packed weight before the new one is allocated
            module.quant_method.process_weights_after_loading(module)
        for tensor in tensors.values():
            if tensor.data_ptr() in self._borrowed:
                self._spare.append(self._borrowed.pop(tensor.data_ptr()))


def load_unpacked(model: Any, weights: Weights) -> None:
    """Replaces every weight through the model's ``load_weights``, for models without packed weights, as on
    a GPU.

    Args:
        model: vLLM's model.
        weights: (Hugging Face name, tensor) of every weight.

    Raises:
        ValueError: a parameter got no weight, or a name is unknown.
    """
    names: list[str] = []

    def recorded() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            names.append(name)
            yield name, tensor

    try:
        loaded = model.load_weights(recorded())
    except KeyError as error:
        raise ValueError(
            f"vLLM's model has no weight {error}; the trainer's model has another architecture."
        ) from error
    if loaded is None:
        raise ValueError(
            f"{type(model).__name__} does not report which of {len(names)} weights it loaded; "
            "use another model."
        )
    _refuse_missing({name for name, _ in model.named_parameters()} - set(loaded))


def _is_linear(module: Any) -> bool:
    return hasattr(module, "input_size_per_partition") and not hasattr(module, "org_vocab_size")


def _refuse_missing(names: set[str]) -> None:
    if names:
        examples = ", ".join(sorted(names)[:3])
        raise ValueError(f"{len(names)} weights of vLLM's model were not sent, such as {examples}.")
