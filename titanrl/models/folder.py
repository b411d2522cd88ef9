"""Checks of a model folder: a supported config, and weights and tokenizer with the same vocabulary."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from titanrl.errors import ConfigError
from titanrl.models.config_file import is_value_architecture, num_labels, read_count, read_json
from titanrl.models.family import resolve_family
from titanrl.models.stored import check_layers, stored_tensors

__all__ = ["ModelInfo", "atomic_folder", "inspect", "vocabulary"]


class ModelInfo(NamedTuple):
    """Facts of a model folder, read without loading weights."""

    path: Path
    architecture: str
    """transformers' class name."""
    vocab_size: int
    """Rows of the embedding; at least the number of token ids."""
    num_tokens: int
    """Size of the tokenizer's vocabulary: largest id + 1."""
    max_length: int
    """Longest sequence, tokens."""
    is_tied: bool
    """Whether the head is the embedding."""
    has_chat_template: bool

    @property
    def is_value_model(self) -> bool:
        """Whether the head gives one value per token instead of logits."""
        return is_value_architecture(self.architecture)


def inspect(path: str | Path, called: str | Path | None = None) -> ModelInfo:
    """Returns the facts of a Hugging Face model folder and checks them against each other.

    Args:
        path: the folder; no weights are read.
        called: name of the folder in messages; None: ``path``.

    Raises:
        ConfigError: a missing folder or file, an unsupported model, a vocabulary that doesn't fit.
    """
    path = Path(path)
    where = f"model folder '{called or path}'"
    if not path.is_dir():
        raise ConfigError(
            f"{where} does not exist; get one with `titanrl model get smollm2-135m` or "
            f"`titanrl model import PATH|HUB_ID|GGUF`."
        )
    config = read_json(path / "config.json", where)
    _, architecture = resolve_family(config, where)
    if is_value_architecture(architecture) and num_labels(config) != 1:
        raise ConfigError(
            f"{where} must have 1 label (id2label) to be a value model, got {num_labels(config)}."
        )
    if config.get("quantization_config"):
        raise ConfigError(f"{where} holds quantized weights; import its dense or GGUF original instead.")
    if not (path / "tokenizer.json").is_file():
        raise ConfigError(f"{where} has no tokenizer.json; make one with `titanrl model import`.")
    vocab_size, num_tokens = (
        read_count(config, "vocab_size", where),
        _num_tokens(path / "tokenizer.json", where),
    )
    if num_tokens > vocab_size:
        raise ConfigError(
            f"{where} has the wrong vocabulary: its tokenizer knows {num_tokens} token ids, its embedding "
            f"has {vocab_size} rows; use the tokenizer that the model was trained with."
        )
    stored = stored_tensors(path, where)
    embedding = stored.get("model.embed_tokens.weight")
    if embedding is None or not embedding.shape:
        raise ConfigError(f"{where} holds no model.embed_tokens.weight; import or download the model again.")
    if embedding.shape[0] != vocab_size:
        raise ConfigError(
            f"{where} has the wrong vocabulary: config.json says vocab_size = {vocab_size}, the stored "
            f"embedding has {embedding.shape[0]} rows; restore the config.json that belongs to the weights."
        )
    check_layers(stored, config, where)
    return ModelInfo(
        path=path,
        architecture=architecture,
        vocab_size=vocab_size,
        num_tokens=num_tokens,
        max_length=read_count(config, "max_position_embeddings", where),
        # transformers' default differs between families; those here are untied by default.
        is_tied=bool(config.get("tie_word_embeddings", False)),
        has_chat_template=_has_chat_template(path),
    )


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
        token_ids: dict[str, int] = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    except Exception as error:  # tokenizers raises bare Exception
        raise ConfigError(f"{where}: tokenizer.json can't be read: {error}.") from None
    return token_ids


def _has_chat_template(path: Path) -> bool:
    if (path / "chat_template.jinja").is_file():
        return True
    config = path / "tokenizer_config.json"
    return config.is_file() and bool(read_json(config, f"model folder '{path}'").get("chat_template"))


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder that is renamed to `target` if the block succeeds, and removed if it raises."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield scratch
        for path in [scratch, *scratch.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
