"""Converts a GGUF file to a Hugging Face folder: bfloat16 safetensors, tokenizer and chat template."""

from __future__ import annotations

import hashlib
from pathlib import Path

from titanrl.errors import ConfigError

__all__ = ["convert", "sha256_of"]


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def convert(gguf: Path, folder: Path) -> None:
    """Writes the model of `gguf` into an existing folder.

    Weights are dequantized to bfloat16, and the written config does not mention the quantization, because
    engines would then expect quantized weights. End-of-sequence ids are those of the tokenizer, so that
    generation stops where the chat template ends a turn.

    Args:
        gguf: the file.
        folder: the existing folder.

    Raises:
        ConfigError: the file isn't GGUF, or its architecture or block type can't be read.
    """
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(
                f"model file '{gguf}' is not GGUF, got other leading bytes; give a .gguf file or a folder."
            )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    parent, name = str(gguf.parent), gguf.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(parent, gguf_file=name, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            parent,
            gguf_file=name,
            trust_remote_code=False,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
    except Exception as error:  # tokenizers raises bare Exception
        raise ConfigError(f"model file '{gguf}' can't be read: {error}") from error
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.config.architectures = [type(model).__name__]
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
