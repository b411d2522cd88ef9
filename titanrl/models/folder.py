"""What a model folder must hold: a supported config, weights and a tokenizer that agree on the vocabulary."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from titanrl.errors import ConfigError, did_you_mean

__all__ = [
    "ARCHITECTURES", "FAMILIES", "LANGUAGE", "VALUE", "ModelInfo", "atomic_folder", "inspect",
    "is_value_architecture", "num_labels", "read_json", "vocabulary", "whole",
]  # fmt: skip

FAMILIES = {"Llama": "llama3", "Qwen3": "qwen3", "Qwen3Moe": "qwen3", "DeepseekV3": "deepseek_v3"}
"""transformers' names of models -> the families of TorchTitan that compute them."""
LANGUAGE, VALUE = "ForCausalLM", "ForSequenceClassification"
ARCHITECTURES = tuple(f"{name}{kind}" for kind in (LANGUAGE, VALUE) for name in FAMILIES)
"""Language and value models of those families."""

MAX_HEADER_BYTES = 100_000_000
"""Longest header that a safetensors file may have."""


class ModelInfo(NamedTuple):
    """What the files say, without loading a weight."""

    path: Path
    architecture: str
    """One of ARCHITECTURES."""
    vocab_size: int
    """Rows of the embedding; at least the number of token ids."""
    num_tokens: int
    """Token ids that the tokenizer knows: largest id + 1."""
    max_length: int
    """Longest sequence the positions cover, tokens."""
    is_tied: bool
    """Whether the head is the embedding."""
    has_chat_template: bool

    @property
    def is_value_model(self) -> bool:
        """Whether the head gives one number instead of the vocabulary's logits."""
        return is_value_architecture(self.architecture)


def is_value_architecture(name: str) -> bool:
    """Whether transformers' class of that name has a head that gives numbers instead of logits."""
    return name.endswith(VALUE)


def num_labels(config: dict[str, Any]) -> int:
    """Returns how many numbers a classifier's head gives, by its config.json; transformers' default is 2."""
    return len(config.get("id2label") or ()) or int(config.get("num_labels", 2))


def inspect(path: str | Path, called: str | Path | None = None) -> ModelInfo:
    """Returns the facts of a Hugging Face model folder, checked against each other; reads no weight.

    Args:
        called: what messages call the folder, where it lies in a scratch place for now.

    Raises:
        ConfigError: a missing folder or file, an unsupported architecture, a vocabulary that doesn't fit.
    """
    path = Path(path)
    where = f"model folder '{called or path}'"
    if not path.is_dir():
        raise ConfigError(
            f"{where} does not exist; get one with `titanrl model get smollm2-135m` or "
            f"`titanrl model import PATH|HUB_ID|GGUF`."
        )
    config = read_json(path / "config.json", where)
    named = config.get("architectures") or "none"
    architecture = str(named[0] if isinstance(named, list) else named)
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"{where}: architecture {architecture!r} is not supported{did_you_mean(architecture, ARCHITECTURES)}; "
            f"supported: {', '.join(ARCHITECTURES)}."
        )
    if is_value_architecture(architecture) and num_labels(config) != 1:
        raise ConfigError(
            f"{where} must have 1 label (id2label) to be a value model, got {num_labels(config)}."
        )
    if config.get("quantization_config"):
        raise ConfigError(f"{where} holds quantized weights; import its dense or GGUF original instead.")
    if not (path / "tokenizer.json").is_file():
        raise ConfigError(f"{where} has no tokenizer.json; make one with `titanrl model import`.")
    vocab_size, num_tokens = whole(config, "vocab_size", where), _num_tokens(path / "tokenizer.json", where)
    if num_tokens > vocab_size:
        raise ConfigError(
            f"{where} has the wrong vocabulary: its tokenizer knows {num_tokens} token ids, its embedding "
            f"has {vocab_size} rows; use the tokenizer that the model was trained with."
        )
    rows = _embedding_rows(path, where)
    if rows is not None and rows != vocab_size:
        raise ConfigError(
            f"{where} has the wrong vocabulary: config.json says vocab_size = {vocab_size}, the stored "
            f"embedding has {rows} rows; restore the config.json that belongs to the weights."
        )
    return ModelInfo(
        path=path,
        architecture=architecture,
        vocab_size=vocab_size,
        num_tokens=num_tokens,
        max_length=whole(config, "max_position_embeddings", where),
        # Hugging Face's default is per family and both families here are untied unless they say so.
        is_tied=bool(config.get("tie_word_embeddings", False)),
        has_chat_template=_has_chat_template(path),
    )


def read_json(path: Path, where: str) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        ConfigError: the file is missing, or isn't a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{where} has no {path.name}; a Hugging Face model folder is needed.") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {path.name} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {path.name} must hold an object, got {type(value).__name__}.")
    return value


def whole(config: Mapping[str, Any], key: str, where: str) -> int:
    """Returns a whole number of a config.json.

    Raises:
        ConfigError: it isn't there, or is none.
    """
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        got = repr(value) if key in config else "nothing"
        raise ConfigError(
            f"{where}: config.json must give {key} as a whole number, got {got}; restore the config.json "
            "that belongs to the weights, or import the model again."
        )
    return value


def vocabulary(path: str | Path) -> dict[str, int]:
    """Returns token -> id of a model folder's tokenizer.

    Raises:
        ConfigError: tokenizer.json can't be read.
    """
    return _vocabulary(Path(path) / "tokenizer.json", f"model folder '{path}'")


def _num_tokens(path: Path, where: str) -> int:
    return max(_vocabulary(path, where).values(), default=-1) + 1


def _vocabulary(path: Path, where: str) -> dict[str, int]:
    from tokenizers import Tokenizer

    try:
        found: dict[str, int] = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    except Exception as error:  # tokenizers raises bare Exception
        raise ConfigError(f"{where}: tokenizer.json can't be read: {error}.") from None
    return found


def _embedding_rows(path: Path, where: str) -> int | None:
    """Rows of the stored embedding, from the safetensors header; None if the weights name none."""
    name, index = "model.embed_tokens.weight", path / "model.safetensors.index.json"
    if index.is_file():
        file = read_json(index, where).get("weight_map", {}).get(name)
        if file is None:
            return None
    elif (path / "model.safetensors").is_file():
        file = "model.safetensors"
    else:
        raise ConfigError(f"{where} has no model.safetensors; make one with `titanrl model import`.")
    try:
        # The header by hand: safetensors' own reader imports numpy, which takes longer than all of this.
        with (path / file).open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > MAX_HEADER_BYTES:
                raise ValueError("it is no safetensors file")
            header = json.loads(stream.read(size))
        return int(header[name]["shape"][0]) if name in header else None
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise ConfigError(
            f"{where}: {file} can't be read: {error}; import or download the model again."
        ) from None


def _has_chat_template(path: Path) -> bool:
    if (path / "chat_template.jinja").is_file():
        return True
    config = path / "tokenizer_config.json"
    return config.is_file() and bool(read_json(config, f"model folder '{path}'").get("chat_template"))


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `target` when the block ends well, and vanishes when it doesn't."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield scratch
        for path in [scratch, *scratch.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
