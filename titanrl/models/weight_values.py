"""Checks of the values of weights."""

from __future__ import annotations

from pathlib import Path

import torch

from titanrl.errors import ConfigError
from titanrl.models.stored import FLOAT_DTYPES, stored_tensors

__all__ = ["check_values", "is_finite"]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity; one pass, without memory of its size."""
    if not tensor.numel() or not tensor.is_floating_point():
        return True
    # Both ends are NaN if any value is.
    low, high = tensor.aminmax()
    return bool(torch.isfinite(low) & torch.isfinite(high))


def check_values(folder: Path, where: str, *, tied: bool) -> None:
    """Reads every weight of a model folder once, one tensor at a time.

    Args:
        folder: the model folder.
        where: its name in messages.
        tied: whether config.json says that the head is the embedding.

    Raises:
        ConfigError: a damaged file; NaN or infinity; quantized weights; a head that differs from the
            embedding although it is tied.
    """
    from safetensors import SafetensorError, safe_open

    stored = stored_tensors(folder, where)

    def read(name: str) -> torch.Tensor:
        with safe_open(folder / stored[name].file, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    for name, (file, dtype, _) in stored.items():
        if dtype not in FLOAT_DTYPES and name.endswith("weight"):
            raise ConfigError(
                f"{where}: {name} in {file} has dtype {dtype}, which is quantized; import the dense or GGUF "
                "original instead."
            )
        try:
            is_valid = is_finite(read(name))
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"{where}: {name} in {file} can't be read: {error}; download the model again."
            ) from None
        if not is_valid:
            raise ConfigError(
                f"{where}: {name} in {file} holds NaN or infinity; download the model again, or take an "
                "earlier checkpoint of the run that made it."
            )
    if tied and HEAD in stored and EMBEDDING in stored and not torch.equal(read(HEAD), read(EMBEDDING)):
        raise ConfigError(
            f"{where}: {HEAD} in {stored[HEAD].file} differs from {EMBEDDING}, but config.json says "
            "tie_word_embeddings = true, so that it would be ignored; set it to false if the head is used."
        )
