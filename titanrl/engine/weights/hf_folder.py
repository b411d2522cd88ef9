"""Loads weights from a Hugging Face folder and exports them to one."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from titanrl.engine.heads.shared import VALUE
from titanrl.engine.weights.stream import iter_state_dict, precision
from titanrl.errors import ConfigError
from titanrl.models.config_file import value_model_keys

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
    """Loads the parameters from the safetensors of ``folder``; every rank reads its own shards.

    A scalar head that the folder of a language model does not have is set to zero: a value model's, or that
    of a critic on the policy's backbone.

    Args:
        model: changed in place.
        folder: Hugging Face folder.

    Raises:
        ConfigError: no safetensors, a missing tensor, or a value model with further tensors, such as a bias
            or statistics of values.
    """
    if not list(Path(folder).glob("*.safetensors")):
        raise ConfigError(f"[model] path has no .safetensors file, got {folder!r}.")
    for part in model.parts:
        state = part.state_dict()
        critic = {name: state.pop(name).zero_() for name in [*state] if name.startswith(VALUE)}
        tensors = model.adapter.to_hf(state)
        if SCORE in tensors and not model.config.is_value_model:
            head = tensors.pop(SCORE).zero_()
            _read(tensors, folder)
            tensors[SCORE] = head
        elif model.config.tied and HEAD in tensors:
            # The file holds only the embedding; an untied head starts as a copy of it.
            renamed = {EMBEDDING: tensors.pop(HEAD)}
            _read(renamed, folder)
            head = renamed[EMBEDDING]
            _read(tensors, folder)
            tensors[HEAD] = head
        else:
            _read(tensors, folder)
        part.load_state_dict(model.adapter.from_hf(tensors) | critic)


def _read(tensors: dict[str, Any], folder: str) -> None:
    stored = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    foreign = sorted(name for name in stored if not name.startswith(BACKBONE) and name != SCORE)
    if SCORE in tensors and foreign:
        raise ConfigError(
            f"{folder} must hold only a backbone and a scalar head {SCORE}, got {foreign[0]} too, which "
            "would be ignored; fold it into the head (a scale of the values scales its weight), or choose "
            "another model."
        )
    for name, tensor in tensors.items():
        size = getattr(stored.get(name), "size", None)
        if size != tensor.shape:
            got = "none" if size is None else f"one of shape {list(size)}"
            raise ConfigError(
                f"[model] path {folder!r} does not hold what its config.json says: {name} must have shape "
                f"{list(tensor.shape)}, got {got}."
            )
    with warnings.catch_warnings():
        # Without collectives, on purpose: pipeline stages read different numbers of times.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(tensors, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)


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
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    is_writer = dist.get_rank() == 0
    if is_writer:
        folder.mkdir(parents=True, exist_ok=True)
    pending: dict[str, torch.Tensor] = {}
    files: list[dict[str, torch.Tensor]] = []
    index: dict[str, int] = {}

    def close() -> None:
        number = len(files) + 1
        save_file(pending, folder / f"part-{number}.safetensors", metadata={"format": "pt"})
        index.update(dict.fromkeys(pending, number))
        files.append({})
        pending.clear()

    for name, value in iter_state_dict(model, pp_group):
        if not is_writer:
            continue
        pending[name] = value.to(dtype=precision(name, dtype), device="cpu").contiguous()
        if sum(tensor.nbytes for tensor in pending.values()) >= SHARD_BYTES:
            close()
    if is_writer:
        if pending:
            close()
        _rename_files(folder, index, len(files))
        _write_config_and_tokenizer(model, folder, dtype)
    dist.barrier()


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
    for path in source.iterdir():
        if path.is_file() and path.name != "config.json" and "safetensors" not in path.name:
            shutil.copyfile(path, folder / path.name)


def _pad_token_id(config: dict[str, Any], folder: Path) -> int | None:
    """Returns the padding id of a value model: transformers scores a text at its last other token.

    Without a padding id in the folder it is the end token: a text then has one score with or without it.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    candidates = (config.get("pad_token_id"), tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((token for token in candidates if token is not None), None)
