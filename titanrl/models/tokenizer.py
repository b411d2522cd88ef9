"""Loading of a model folder's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from titanrl.errors import ConfigError

__all__ = ["load_tokenizer"]


def load_tokenizer(folder: str | Path) -> Any:
    """Returns transformers' tokenizer of a model folder; no code of the folder is run.

    Raises:
        ConfigError: a file of the tokenizer, or the config.json, is damaged.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare Exception
        files = "tokenizer.json, tokenizer_config.json, chat_template.jinja or config.json"
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"model folder '{folder}' has a damaged {files}: {type(error).__name__}: {reason}; restore it, "
            "or import the model again."
        ) from None
