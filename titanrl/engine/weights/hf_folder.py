"""Weights by their Hugging Face names: read from a folder, written to one."""

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
from titanrl.models.hf_config import value_model_keys

if TYPE_CHECKING:
    from torchtitan.protocols.state_dict_adapter import StateDictAdapter

    from titanrl.engine.build import Model

__all__ = ["export", "load_folder", "rename_head"]

EMBEDDING, HEAD, BODY = "model.embed_tokens.weight", "lm_head.weight", "model."
SCORE = "score.weight"
"""The head of transformers' models for sequence classification; its Llama and Qwen3 have no bias."""
SHARD_BYTES = 4 * 2**30
"""Size at which an exported file is closed and the next begun."""


def rename_head(adapter: StateDictAdapter) -> None:
    """Makes the adapter of a value model call its head as transformers does."""
    adapter.from_hf_map[SCORE] = adapter.from_hf_map.pop(HEAD)


@torch.no_grad()
def load_folder(model: Model, folder: str) -> None:
    """Fills the parameters from the safetensors of ``folder``; every rank reads its own shards.

    A scalar head that the folder of a language model cannot have is set to zero: a value model's, or that of
    a critic on the policy's body.

    Raises:
        ConfigError: no safetensors, or one that lacks a tensor or holds more beside a scalar head, a bias
            or statistics of values.
    """
    if not list(Path(folder).glob("*.safetensors")):
        raise ConfigError(f"[model] path has no .safetensors file, got {folder!r}.")
    for part in model.parts:
        state = part.state_dict()
        critic = {name: state.pop(name).zero_() for name in [*state] if name.startswith(VALUE)}
        wanted = model.adapter.to_hf(state)
        if SCORE in wanted and not model.config.is_value_model:
            head = wanted.pop(SCORE).zero_()
            _read(wanted, folder)
            wanted[SCORE] = head
        elif model.config.tied and HEAD in wanted:
            # The file holds the embedding alone; an untied head begins as a copy of it.
            renamed = {EMBEDDING: wanted.pop(HEAD)}
            _read(renamed, folder)
            head = renamed[EMBEDDING]
            _read(wanted, folder)
            wanted[HEAD] = head
        else:
            _read(wanted, folder)
        part.load_state_dict(model.adapter.from_hf(wanted) | critic)


def _read(tensors: dict[str, Any], folder: str) -> None:
    stored = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    foreign = sorted(name for name in stored if not name.startswith(BODY) and name != SCORE)
    if SCORE in tensors and foreign:
        raise ConfigError(
            f"{folder} must be a body and a scalar head {SCORE} alone, got {foreign[0]} too, which would not "
            "be computed with; fold it into the head (a scale of the values scales its weight), or choose "
            "another model."
        )
    for name, tensor in tensors.items():
        size = getattr(stored.get(name), "size", None)
        if size != tensor.shape:
            found = "none" if size is None else f"one of shape {list(size)}"
            raise ConfigError(
                f"[model] path {folder!r} does not hold what its config.json says: {name} must have shape "
                f"{list(tensor.shape)}, got {found}."
            )
    with warnings.catch_warnings():
        # Without collectives: the stages of a pipeline read unequally often. That is meant, not a mistake.
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
        dtype: of the file. float32 keeps the master weights as they are; in bfloat16 small updates are
            rounded away.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    is_writer = dist.get_rank() == 0
    if is_writer:
        folder.mkdir(parents=True, exist_ok=True)
    held: dict[str, torch.Tensor] = {}
    files: list[dict[str, torch.Tensor]] = []
    index: dict[str, int] = {}

    def close() -> None:
        number = len(files) + 1
        save_file(held, folder / f"part-{number}.safetensors", metadata={"format": "pt"})
        index.update(dict.fromkeys(held, number))
        files.append({})
        held.clear()

    for name, value in iter_state_dict(model, pp_group):
        if not is_writer:
            continue
        held[name] = value.to(dtype=precision(name, dtype), device="cpu").contiguous()
        if sum(tensor.nbytes for tensor in held.values()) >= SHARD_BYTES:
            close()
    if is_writer:
        if held:
            close()
        _finish(folder, index, len(files))
        _copy_rest(model, folder, dtype)
    dist.barrier()


def _finish(folder: Path, index: dict[str, int], count: int) -> None:
    """Gives the files the names that transformers looks for, and writes their index if there are several."""
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


def _copy_rest(model: Model, folder: Path, dtype: torch.dtype) -> None:
    source = Path(model.folder)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config |= {"tie_word_embeddings": model.tied, "dtype": str(dtype).removeprefix("torch.")}
    if model.is_value_model:
        config |= value_model_keys(config["architectures"], tuple(model.heads)) | {
            "pad_token_id": _padding(config, source)
        }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for path in source.iterdir():
        if path.is_file() and path.name != "config.json" and "safetensors" not in path.name:
            shutil.copyfile(path, folder / path.name)


def _padding(config: dict[str, Any], folder: Path) -> int | None:
    """Returns the id that transformers takes for padding, as it scores a text at its last other token.

    The end token where the folder names none: with it or without, a text has one score then.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    known = (config.get("pad_token_id"), tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((found for found in known if found is not None), None)
