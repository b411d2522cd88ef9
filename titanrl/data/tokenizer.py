"""Prompts -> token ids, once; answers -> text for rewards and logs. Ids never go through text and back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from titanrl.errors import ConfigError

if TYPE_CHECKING:
    from titanrl.protocols import Prompt

__all__ = ["ChatTokenizer"]


class ChatTokenizer:
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
            ids = self.encode_text(self.render(prompt.messages, add_generation_prompt=True))
        bos = self.tokenizer.bos_token_id
        while bos is not None and len(ids) > 1 and ids[0] == bos == ids[1]:
            del ids[0]
        return ids

    def encode_text(self, text: str) -> list[int]:
        """Returns the ids of a text that holds its special tokens already: a template prints BOS itself."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def render(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = False) -> str:
        """Returns chat messages as the template prints them.

        Args:
            add_generation_prompt: whether the text ends where an answer begins.

        Raises:
            ConfigError: no template is known. ValueError: the template refuses the messages.
        """
        from jinja2 import TemplateError

        if self.tokenizer.chat_template is None:
            raise ConfigError(
                "[model] chat_template is missing and the tokenizer has none, so chat messages cannot be "
                "rendered; state a Jinja template, or use a source that yields plain text."
            )
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=add_generation_prompt, tokenize=False
            )
        except TemplateError as error:
            raise ValueError(f"is refused by the chat template: {error}.") from error
        return str(text)

    def assistant_spans(self, messages: Sequence[dict[str, str]]) -> list[tuple[int, int]] | None:
        """Returns where the assistant's turns lie in ``render(messages)``, characters.

        None where the template has no {% generation %} marks.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        template = self.tokenizer.chat_template
        if template is None or not re.search(r"\{%-?\s*generation\s*-?%\}", template):
            return None
        _, (spans,) = render_jinja_template(
            [list(messages)], chat_template=template, return_assistant_tokens_mask=True,
            **self.tokenizer.special_tokens_map,
        )  # fmt: skip
        return [(int(start), int(end)) for start, end in spans]

    @property
    def eos_id(self) -> int | None:
        """The id that ends a fixed answer of plain text; None where the model has none."""
        own = self.tokenizer.eos_token_id
        return own if own is not None else next(iter(self.eos_ids), None)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns an answer as text, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def decode_prompt(self, ids: Sequence[int]) -> str:
        """Returns a prompt as text, special tokens shown."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each token, spaces and special tokens as they stand in the whole."""
        # Some tokenizers drop the space before a token that stands alone, so each follows its predecessor.
        found, before = [], ""
        for i, token in enumerate(ids):
            pair = self.decode_prompt([*ids[max(i - 1, 0) : i], token])
            found.append(pair[len(before) :])
            before = self.decode_prompt([token])
        return found


def _eos_ids(folder: Path, tokenizer: object) -> tuple[int, ...]:
    """Returns every id that ends an answer: the tokenizer's and those of generation_config.json."""
    found = {getattr(tokenizer, "eos_token_id", None)}
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            stated = json.loads(path.read_text()).get("eos_token_id")
            found.update(stated if isinstance(stated, list) else [stated])
    return tuple(sorted(token for token in found if token is not None))
