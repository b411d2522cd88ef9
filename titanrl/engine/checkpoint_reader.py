"""Reads distributed checkpoints without running code: pickles may refer to an allowlist of classes only.

torch 2.13 unpickles ``.metadata`` and the bytes of a checkpoint without restriction: its author could run
code in the process that loads it.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from titanrl.engine.manifest import METADATA
from titanrl.errors import ConfigError

__all__ = ["UnfitCheckpoint", "failure_of", "load_checkpoint", "read_metadata"]

ALLOWED = {
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "torch": {"Size"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.serialization": {"_get_layout"},
}
"""Module -> names that a ``.metadata`` may refer to, besides torch's dtypes."""
EMBEDDING, HEAD = "tok_embeddings.weight", "lm_head.weight"


class UnfitCheckpoint(ConfigError):
    """A checkpoint that does not hold what is to be loaded."""


class MetadataUnpickler(pickle.Unpickler):
    """An unpickler of torch's metadata classes; they only hold values."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns an allowed class or dtype.

        Raises:
            pickle.UnpicklingError: another name; nothing was imported or called.
        """
        if name in ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(value := vars(torch).get(name), torch.dtype):
            return value
        raise pickle.UnpicklingError(
            f"{METADATA} refers to {module}.{name}, which no checkpoint needs; nothing of it was run"
        )


def read_metadata(checkpoint: Path) -> Metadata:
    """Returns the metadata of a checkpoint: its tensors, and where they are stored.

    Raises:
        ConfigError: the file is damaged, or refers to something else than torch's metadata classes.
    """
    try:
        with (checkpoint / METADATA).open("rb") as file:
            metadata = MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise pickle.UnpicklingError(f"{METADATA} does not describe a checkpoint")
        for info in metadata.storage_data.values():
            if Path(info.relative_path).name != info.relative_path:
                raise pickle.UnpicklingError(
                    f"{METADATA} refers to {info.relative_path!r}, which is not in the checkpoint's folder"
                )
    except pickle.UnpicklingError as error:
        text = str(error) if METADATA in str(error) else f"{METADATA} is damaged: {error}"
        raise ConfigError(f"{checkpoint} is not loaded: {text}.") from None
    except OSError as error:
        raise ConfigError(f"{checkpoint} is not loaded: {METADATA}: {error.strerror}.") from None
    except Exception as error:  # damaged pickles raise almost any exception
        raise ConfigError(
            f"{checkpoint} is not loaded: {METADATA} is damaged: {type(error).__name__}: {error}."
        ) from None
    return metadata


def load_checkpoint(states: dict[str, Any], checkpoint: Path) -> None:
    """Loads the values of ``states`` in place from a checkpoint of any mesh; a collective.

    Args:
        states: name -> tensor, value, or object with ``state_dict`` and ``load_state_dict``.
        checkpoint: its folder.

    Raises:
        UnfitCheckpoint: the checkpoint was made by another model or optimizer, or holds objects.
        ConfigError: its metadata is damaged.
    """
    reader = _Reader(read_metadata(checkpoint), checkpoint)
    try:
        load(states, storage_reader=reader, planner=_Planner())
    except ConfigError:
        raise
    except (CheckpointException, RuntimeError, ValueError, KeyError, AssertionError) as error:
        raise UnfitCheckpoint(
            f"{checkpoint} cannot be loaded: {failure_of(error)}; resume or export with the model, the "
            "optimizer and the critic of the run that wrote it."
        ) from error


def failure_of(error: BaseException) -> str:
    """Returns the first reason of a failed save or load, in one line, without its traceback."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
        if isinstance(error, CheckpointException):
            return failure_of(error)
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


class _Reader(FileSystemReader):
    """A reader of files whose metadata was read by ``read_metadata``."""

    def __init__(self, metadata: Metadata, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self._metadata = _with_tied_head(metadata)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._metadata.storage_meta is None:
            self._metadata.storage_meta = StorageMeta()
        self._metadata.storage_meta.load_id = self.load_id
        return self._metadata


class _Planner(DefaultLoadPlanner):
    """A planner that unpickles numbers, strings, containers and tensors only."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, torch.load(value, weights_only=True))


def _with_tied_head(metadata: Metadata) -> Metadata:
    """Gives the head of a tied model the optimizer state of the embedding, where it has none of its own.

    The last stage of a pipeline holds a copy of the matrix, whose state equals that of the first stage.
    """
    tensors, storage = dict(metadata.state_dict_metadata), dict(metadata.storage_data)
    copies = {name: name.replace(EMBEDDING, HEAD) for name in tensors if EMBEDDING in name}
    copies = {name: copy for name, copy in copies.items() if copy not in tensors}
    tensors |= {copy: tensors[name] for name, copy in copies.items()}
    storage |= {
        replace(index, fqn=copies[index.fqn]): info
        for index, info in metadata.storage_data.items()
        if index.fqn in copies
    }
    return replace(metadata, state_dict_metadata=tensors, storage_data=storage)
