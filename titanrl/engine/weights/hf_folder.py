"""Loads weights from a Hugging Face folder and exports them to one."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from titanrl.engine.checkpoint_reader import failure_of
from titanrl.engine.collectives import broadcast_object
from titanrl.engine.heads.shared import VALUE
from titanrl.engine.weights.stream import iter_state_dict, precision
from titanrl.errors import ConfigError
from titanrl.models.config_file import read_json, value_model_keys
from titanrl.models.sources import copied_files
from titanrl.models.stored import FLOAT_DTYPES, StoredTensor, stored_tensors
from titanrl.models.tokenizer import load_tokenizer
from titanrl.models.weight_values import is_finite

if TYPE_CHECKING:
    from torchtitan.protocols.state_dict_adapter import StateDictAdapter

    from titanrl.engine.model import Model

__all__ = ["export", "load_folder", "rename_head"]

EMBEDDING, HEAD, BACKBONE = "model.embed_tokens.weight", "lm_head.weight", "model."
SCORE = "score.weight"
"""The head of transformers' models for sequence classification; it has no bias."""
SHARD_BYTES = 4 * 2**30
"""Size at which an exported file is closed and the next one is started."""


def rename_head(adapter: StateDictAdapter) -> None:
    """Makes the adapter of a value model use transformers' name of the head."""
    adapter.from_hf_map[SCORE] = adapter.from_hf_map.pop(HEAD)


@torch.no_grad()
def load_folder(model: Model, folder: str) -> None:
    """Loads the parameters from the safetensors of ``folder``; every rank reads its own shards; a collective.

    A scalar head that the folder of a language model does not have is set to zero: a value model's, or that
    of a critic on the policy's backbone.

    Args:
        model: changed in place.
        folder: Hugging Face folder.

    Raises:
        ConfigError: a file that is missing, damaged or truncated; a tensor that is missing, has another shape
            or holds NaN or infinity; tensors that the model does not have; or a value model with further
            tensors, such as a bias or statistics of values.
    """
    problem, used = "", set()
    try:
        stored = stored_tensors(Path(folder), f"[model] path {folder!r}")
        for part in model.parts:
            used |= _load_part(model, part, folder, stored)
    except ConfigError as error:
        problem = str(error)
    # A file may be damaged where one rank's shard is, and a pipeline stage needs only some of the tensors.
    results: list[tuple[str, set[str]]] = [(problem, used)] * dist.get_world_size()
    if len(results) > 1:
        dist.all_gather_object(results, (problem, used))
    if problem := next((each for each, _ in results if each), ""):
        raise ConfigError(problem)
    _check_all_used(model, folder, stored, set().union(*(names for _, names in results)))


def _load_part(
    model: Model, part: torch.nn.Module, folder: str, stored: Mapping[str, StoredTensor]
) -> set[str]:
    """Loads one part, and returns the names of the tensors that it read."""
    state = part.state_dict()
    critic = {name: state.pop(name).zero_() for name in [*state] if name.startswith(VALUE)}
    tensors = model.adapter.to_hf(state)
    if SCORE in tensors and not model.config.is_value_model:
        head = tensors.pop(SCORE).zero_()
        _read(tensors, folder, stored)
        used = {*tensors}
        tensors[SCORE] = head
    elif model.config.tied and HEAD in tensors:
        # The file holds only the embedding; an untied head starts as a copy of it.
        renamed = {EMBEDDING: tensors.pop(HEAD)}
        _read(renamed, folder, stored)
        head = renamed[EMBEDDING]
        _read(tensors, folder, stored)
        used = {*tensors, EMBEDDING}
        tensors[HEAD] = head
    else:
        _read(tensors, folder, stored)
        used = {*tensors}
    part.load_state_dict(model.adapter.from_hf(tensors) | critic)
    return used


def _read(tensors: dict[str, Any], folder: str, stored: Mapping[str, StoredTensor]) -> None:
    """Reads tensors in place; no collective, because pipeline stages read different numbers of times."""
    foreign = sorted(name for name in stored if not name.startswith(BACKBONE) and name != SCORE)
    if SCORE in tensors and foreign:
        raise ConfigError(
            f"{folder} must hold only a backbone and a scalar head {SCORE}, got {foreign[0]} too, which "
            "would be ignored; fold it into the head (a scale of the values scales its weight), or choose "
            "another model."
        )
    for name, tensor in tensors.items():
        found = stored.get(name)
        if found is None or found.shape != tuple(tensor.shape):
            got = "none" if found is None else f"one of shape {list(found.shape)} in {found.file}"
            raise ConfigError(
                f"[model] path {folder!r} does not hold what its config.json says: {name} must have shape "
                f"{list(tensor.shape)}, got {got}; restore the config.json that belongs to the weights, or "
                "import the model again."
            )
        if found.dtype not in FLOAT_DTYPES:
            raise ConfigError(
                f"[model] path {folder!r}: {name} in {found.file} has dtype {found.dtype}, which is "
                f"quantized or no weight; it must be one of {', '.join(FLOAT_DTYPES)}; import the dense "
                "model."
            )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(tensors, storage_reader=_Reader(folder, stored), no_dist=True)
    except (CheckpointException, SafetensorError, OSError) as error:
        raise ConfigError(
            f"[model] path {folder!r} can't be read: {failure_of(error)}; import or download the model again."
        ) from error
    for name, tensor in tensors.items():
        if not is_finite(tensor.to_local() if isinstance(tensor, DTensor) else tensor):
            raise ConfigError(
                f"[model] path {folder!r}: {name} in {stored[name].file} holds NaN or infinity; import or "
                "download the model again, or export an earlier checkpoint of the run that made it."
            )


class _Reader(HuggingFaceStorageReader):
    """A reader of a folder's own weight files, and of no other safetensors files beside them."""

    def __init__(self, folder: str, stored: Mapping[str, StoredTensor]) -> None:
        super().__init__(folder)
        self.fs = _Files(
            [str(Path(folder) / file) for file in sorted({each.file for each in stored.values()})]
        )


class _Files(FileSystem):
    """A file system that lists some files only."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        return self._files


def _check_all_used(
    model: Model, folder: str, stored: Mapping[str, StoredTensor], used: Collection[str]
) -> None:
    """Refuses a folder with tensors that would be ignored.

    Rotary tables are computed; the head of a language model is not loaded if it is tied, or replaced by a
    scalar one; layers for multi-token prediction are not trained.
    """
    config = read_json(Path(folder) / "config.json", f"model folder '{folder}'")
    first = model.config.num_layers
    further = [f"model.layers.{first + n}." for n in range(int(config.get("num_nextn_predict_layers") or 0))]
    replaced = {HEAD} if model.config.tied or model.is_value_model else set()
    extra = [
        name
        for name in stored
        if name not in used
        and name not in replaced
        and not name.endswith("rotary_emb.inv_freq")
        and not name.startswith(tuple(further))
    ]
    if extra:
        others = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise ConfigError(
            f"[model] path {folder!r}: {stored[extra[0]].file} holds {extra[0]}{others}, which a model of "
            "its config.json does not have; restore the config.json that belongs to the weights, or choose a "
            "model of a supported architecture."
        )


def export(
    model: Model,
    pp_group: dist.ProcessGroup | None,
    folder: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Writes a Hugging Face folder (config, tokenizer, safetensors) that transformers loads; a collective.

    Args:
        model: the model to write.
        pp_group: of its pipeline stages; None: no pipeline parallelism.
        folder: written by the first rank.
        dtype: of the file. float32 keeps the master weights; bfloat16 rounds small updates away.

    Raises:
        ConfigError: weights beyond the range of float16.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    is_writer = dist.get_rank() == 0
    if is_writer:
        folder.mkdir(parents=True, exist_ok=True)
    pending: dict[str, torch.Tensor] = {}
    files: list[dict[str, torch.Tensor]] = []
    index: dict[str, int] = {}
    problem = ""

    def close() -> None:
        number = len(files) + 1
        save_file(pending, folder / f"part-{number}.safetensors", metadata={"format": "pt"})
        index.update(dict.fromkeys(pending, number))
        files.append({})
        pending.clear()

    for name, value in iter_state_dict(model, pp_group):
        if not is_writer:
            continue
        written = value.to(dtype=precision(name, dtype), device="cpu").contiguous()
        if written.dtype == torch.float16 and not is_finite(written):
            problem = problem or f"{name} has values beyond the range of float16; choose --dtype bfloat16."
        pending[name] = written
        if sum(tensor.nbytes for tensor in pending.values()) >= SHARD_BYTES:
            close()
    if is_writer:
        if pending:
            close()
        _rename_files(folder, index, len(files))
        _write_config_and_tokenizer(model, folder, dtype)
    if problem := broadcast_object(problem):  # also waits until the folder is complete
        raise ConfigError(problem)


def _rename_files(folder: Path, index: dict[str, int], count: int) -> None:
    """Renames the files to the names that transformers expects; writes an index of several files."""
    if count == 1:
        (folder / "part-1.safetensors").replace(folder / "model.safetensors")
        return
    names = {number: f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)}
    for number, name in names.items():
        (folder / f"part-{number}.safetensors").replace(folder / name)
    weight_map = {key: names[number] for key, number in index.items()}
    size = sum((folder / name).stat().st_size for name in names.values())
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}, indent=2)
    (folder / "model.safetensors.index.json").write_text(text)


def _write_config_and_tokenizer(model: Model, folder: Path, dtype: torch.dtype) -> None:
    source = Path(model.folder)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config |= {"tie_word_embeddings": model.tied, "dtype": str(dtype).removeprefix("torch.")}
    if model.is_value_model:
        config |= value_model_keys(config["architectures"], tuple(model.heads)) | {
            "pad_token_id": _pad_token_id(config, source)
        }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    # Weights in other formats, which are those of before, are not among them.
    for path in copied_files(source):
        if path.name != "config.json" and "safetensors" not in path.name:
            shutil.copyfile(path, folder / path.name)


def _pad_token_id(config: dict[str, Any], folder: Path) -> int | None:
    """Returns the padding id of a value model: transformers scores a text at its last other token.

    Without a padding id in the folder it is the end token: a text then has one score with or without it.
    """
    tokenizer = load_tokenizer(folder)
    candidates = (config.get("pad_token_id"), tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((token for token in candidates if token is not None), None)
