"""The tensors that the safetensors files of a model folder hold, read from their headers.

Headers are parsed here because safetensors' own reader imports a framework, and because its messages name
neither the file nor a remedy.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from titanrl.errors import ConfigError
from titanrl.models.config_file import read_json

__all__ = [
    "FLOAT_DTYPES",
    "INDEX",
    "StoredTensor",
    "check_layers",
    "source_dtype",
    "stored_tensors",
    "weight_files",
]

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
"""Longest header that a safetensors file may have."""
FLOAT_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""safetensors' names of the dtypes that weights may have -> torch's names."""
DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
REMEDY = "import or download the model again"
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


class StoredTensor(NamedTuple):
    """A tensor in a safetensors file."""

    file: str
    """Name of the file in the folder."""
    dtype: str
    """safetensors' name, e.g. "BF16"."""
    shape: tuple[int, ...]


def weight_files(folder: Path, where: str) -> list[str]:
    """Returns the names of a model folder's safetensors files: those of its index, or the only one.

    Args:
        folder: the model folder.
        where: its name in messages.

    Raises:
        ConfigError: there is none, one is missing, or the index is damaged or contradicts the files.
    """
    if not (folder / INDEX).is_file():
        if not (folder / SINGLE).is_file():
            raise ConfigError(f"{where} has no {SINGLE}; make one with `titanrl model import`.")
        return [SINGLE]
    names = read_json(folder / INDEX, where).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(each, str) for each in names.values()):
        raise ConfigError(f"{where}: {INDEX} has no weight_map from tensors to files; {REMEDY}.")
    files = sorted(set(names.values()))
    for file in files:
        if Path(file).name != file or "\0" in file:
            raise ConfigError(f"{where}: {INDEX} lists {file!r}, which is not a file name; {REMEDY}.")
        if not (folder / file).is_file():
            raise ConfigError(f"{where}: {file} is missing, which {INDEX} lists; {REMEDY}.")
    if (folder / SINGLE).is_file() and SINGLE not in files:
        raise ConfigError(
            f"{where} holds {SINGLE} and {INDEX}, which lists other files; remove the outdated one."
        )
    return files


def stored_tensors(folder: Path, where: str) -> dict[str, StoredTensor]:
    """Returns name -> tensor of a model folder, from the headers of its files; no weights are read.

    Args:
        folder: the model folder.
        where: its name in messages.

    Raises:
        ConfigError: a file is missing, damaged or truncated, or two files hold the same tensor.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(folder, where):
        try:
            header = _read_header(folder / file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{where}: {file} can't be read: {reason}; {REMEDY}.") from None
        for name, (dtype, shape) in header.items():
            if name in tensors:
                raise ConfigError(
                    f"{where}: {tensors[name].file} and {file} both hold {name}; remove the outdated file."
                )
            tensors[name] = StoredTensor(file, dtype, shape)
    if (folder / INDEX).is_file():
        for name, file in read_json(folder / INDEX, where)["weight_map"].items():
            if name not in tensors or tensors[name].file != file:
                raise ConfigError(f"{where}: {file} does not hold {name}, as {INDEX} says; {REMEDY}.")
    return tensors


def check_layers(stored: Mapping[str, StoredTensor], config: Mapping[str, Any], where: str) -> None:
    """Refuses weights of another number of layers than config.json says.

    Args:
        stored: name -> tensor of the folder.
        config: keys of its config.json.
        where: the folder's name in messages.

    Raises:
        ConfigError: a layer is missing, or there are too many.
    """
    count = config.get("num_hidden_layers")
    if not isinstance(count, int):
        return
    layers = {int(match[1]) for name in stored if (match := LAYER.fullmatch(name))}
    further = config.get("num_nextn_predict_layers")
    allowed = count + (further if isinstance(further, int) else 0)
    missing = next((layer for layer in range(count) if layer not in layers), None)
    if missing is not None:
        raise ConfigError(
            f"{where} holds no weights of model.layers.{missing}, and config.json says num_hidden_layers = "
            f"{count}; {REMEDY}."
        )
    extra = min((layer for layer in layers if layer >= allowed), default=None)
    if extra is not None:
        name, tensor = next((name, each) for name, each in stored.items() if f"model.layers.{extra}." in name)
        raise ConfigError(
            f"{where}: {tensor.file} holds {name}, but config.json says num_hidden_layers = {count}; restore "
            "the config.json that belongs to the weights."
        )


def source_dtype(folder: str | Path) -> str:
    """Returns the dtype of a model's weights, e.g. "bfloat16": config.json's, or the stored embedding's.

    Raises:
        ConfigError: the folder has no config.json or no weights.
    """
    where = f"model folder '{folder}'"
    config = read_json(Path(folder) / "config.json", where)
    named = config.get("dtype") or config.get("torch_dtype")
    name = str(named).removeprefix("torch.")
    if name in FLOAT_DTYPES.values():
        return name
    tensors = stored_tensors(Path(folder), where)
    stored = tensors.get("model.embed_tokens.weight", next(iter(tensors.values()), None))
    return "float32" if stored is None else FLOAT_DTYPES.get(stored.dtype, "float32")


def _read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns name -> (dtype, shape) of a safetensors file.

    Raises:
        ValueError: the file is not safetensors, or is shorter or longer than its header says.
    """
    size = os.stat(path).st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ValueError("it is not a safetensors file, or its beginning is damaged")
        header: Any = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    tensors, ranges = {}, []
    for name, entry in header.items():
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
            raise ValueError(f"the sizes of {name} are not whole numbers")
        if end - start != prod(shape) * DTYPE_BYTES.get(dtype, 0) and dtype in DTYPE_BYTES:
            raise ValueError(f"{name} has {end - start} bytes, which do not fit its shape {list(shape)}")
        tensors[name] = (str(dtype), shape)
        ranges.append((start, end))
    _check_ranges(ranges, size - 8 - length)
    return tensors


def _check_ranges(ranges: Iterable[tuple[int, int]], num_bytes: int) -> None:
    """Refuses tensors that overlap, leave gaps, or do not end where the file ends."""
    position = 0
    for start, end in sorted(ranges):
        if start != position:
            raise ValueError("its tensors overlap or leave gaps")
        position = end
    if position != num_bytes:
        kind = "truncated" if num_bytes < position else "longer than its header says"
        raise ValueError(f"it is {kind}: it holds {num_bytes} bytes of weights instead of {position}")
