"""Prompts -> token ids, once; answers -> text for rewards and logs. Ids never go through text and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from titanrl.errors import ConfigError

if TYPE_CHECKING:
    from titanrl.protocols import Prompt

__all__ = ["Tokens"]


class Tokens:
    """The model's tokenizer with the chat template that the experiment settled on.

    Args:
        folder: HF folder of the model.
        chat_template: Jinja template that replaces the tokenizer's own.

    Raises:
        ConfigError: chat messages are to be rendered and no template is known.
    """

    def __init__(self, folder: str | Path, chat_template: str | None = None) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        if chat_template is not None:
            self.tokenizer.chat_template = chat_template
        self.eos_ids = _eos_ids(Path(folder), self.tokenizer)

    def encode(self, prompt: Prompt) -> list[int]:
        """Returns the prompt's token ids, at most one BOS; a chat ends where the answer begins."""
        if isinstance(prompt.messages, str):
            ids = list(self.tokenizer.encode(prompt.messages))
        else:
            if self.tokenizer.chat_template is None:
                raise ConfigError(
                    "[model] chat_template is missing and the tokenizer has none, so chat messages cannot be "
                    "rendered; state a Jinja template, or use a prompt source that yields plain text."
                )
            text = self.tokenizer.apply_chat_template(
                list(prompt.messages), add_generation_prompt=True, tokenize=False
            )
            # The template prints BOS itself where the model wants one.
            ids = list(self.tokenizer.encode(text, add_special_tokens=False))
        bos = self.tokenizer.bos_token_id
        while bos is not None and len(ids) > 1 and ids[0] == bos == ids[1]:
            del ids[0]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Returns an answer as text, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def decode_prompt(self, ids: Sequence[int]) -> str:
        """Returns a prompt as text, special tokens shown."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


def _eos_ids(folder: Path, tokenizer: object) -> tuple[int, ...]:
    """Returns every id that ends an answer: the tokenizer's and those of generation_config.json."""
    found = {getattr(tokenizer, "eos_token_id", None)}
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            stated = json.loads(path.read_text()).get("eos_token_id")
            found.update(stated if isinstance(stated, list) else [stated])
    return tuple(sorted(token for token in found if token is not None))
