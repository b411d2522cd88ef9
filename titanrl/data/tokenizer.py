"""The model's tokenizer: prompts -> token ids, responses -> text; sampled ids are never re-encoded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titanrl.data.rendered import END_MARK, check_contents, check_keys, check_tools, content_text, is_printed
from titanrl.errors import ConfigError
from titanrl.models.config_file import read_json
from titanrl.models.tokenizer import load_tokenizer
from titanrl.ops.thoughts import CLOSE, OPEN

if TYPE_CHECKING:
    from titanrl.protocols import Prompt

__all__ = ["ChatTokenizer"]


class ChatTokenizer:
    """The model's tokenizer with the experiment's chat template.

    Args:
        folder: HF folder of the model.
        chat_template: Jinja template that replaces the tokenizer's own.
    """

    def __init__(self, folder: str | Path, chat_template: str | None = None) -> None:
        self.tokenizer = load_tokenizer(folder)
        if chat_template is not None:
            self.tokenizer.chat_template = chat_template
        self.eos_ids = _eos_ids(Path(folder), self.tokenizer)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt with at most one BOS; see ``render_prompt`` for a chat."""
        if isinstance(prompt.messages, str):
            ids = self._encode(prompt.messages)
        else:
            ids = self.encode_text(self.render_prompt(prompt.messages, tools=prompt.tools))
            check_tools(prompt.tools, self.template)
        bos = self.tokenizer.bos_token_id
        while bos is not None and len(ids) > 1 and ids[0] == bos == ids[1]:
            del ids[0]
        return ids

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of a text that already contains its special tokens, as a template prints them."""
        return self._encode(text, add_special_tokens=False)

    def _encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        try:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        except TypeError:
            # tokenizers refuses text that UTF-8 cannot hold with a message about types.
            raise ValueError("has an unpaired surrogate, which is no character; remove it.") from None

    def render_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a chat as text up to the response: it ends with the generation prompt.

        If the last message is the assistant's, the response continues it (prefill): the text ends with its
        content. A content that opens thoughts and does not close them follows the generation prompt directly,
        because templates print such a content as if its thoughts were empty.

        Args:
            messages: the chat.
            tools: schemas of the functions that the model may call.
            template_kwargs: further variables of the template, for instance ``enable_thinking``.

        Raises:
            ConfigError: there is no template.
            ValueError: the template rejects the messages, ignores a message or its tool calls, or cannot
                continue the last one.
        """
        if not messages or messages[-1]["role"] != "assistant":
            text = self.render(
                messages, add_generation_prompt=True, tools=tools, template_kwargs=template_kwargs
            )
        else:
            text = self._render_prefill(messages, tools, template_kwargs)
        check_keys(messages, self.template)
        check_contents(messages, text)
        return text

    def _render_prefill(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> str:
        hint = "end the messages with a user's or a tool's."
        options: dict[str, Any] = {"tools": tools, "template_kwargs": template_kwargs}
        prefill = content_text(messages[-1])
        if not prefill or messages[-1].get("tool_calls"):
            problem = f"{'a' if prefill else 'an empty'} message of the assistant"
            problem += " that calls tools" if prefill else ""
            raise ValueError(f"ends with {problem}, which cannot be continued; {hint}")
        if OPEN in prefill and CLOSE not in prefill and len(messages) > 1:
            start = self.render(messages[:-1], add_generation_prompt=True, **options)
            # The generation prompt may have opened the thoughts itself.
            if prefill.startswith(OPEN) and start.rstrip().endswith(OPEN):
                start = start.rstrip().removesuffix(OPEN)
            return start + prefill
        text, mark, _ = self.render(
            [*messages[:-1], {**messages[-1], "content": prefill + END_MARK}], **options
        ).rpartition(END_MARK)
        if not mark or not is_printed(prefill, text):
            raise ValueError(
                f"ends with a message of the assistant, which the chat template cannot continue; {hint}"
            )
        return text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return chat messages as the template renders them, which gets all keys of a message.

        Args:
            messages: the chat.
            add_generation_prompt: whether the text ends with the header of an assistant turn.
            tools: schemas of the functions that the model may call.
            template_kwargs: further variables of the template, for instance ``enable_thinking``.

        Raises:
            ConfigError: there is no template.
            ValueError: the template rejects the messages.
        """
        if self.tokenizer.chat_template is None:
            raise ConfigError(
                "[model] chat_template is missing and the tokenizer has none, so chat messages cannot be "
                "rendered; set a Jinja template, or use a source that yields plain text."
            )
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools or ()] or None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **(template_kwargs or {}),
            )
        except Exception as error:  # A template's own, also for values that it does not expect.
            raise ValueError(f"is rejected by the chat template: {error or repr(error)}.") from error
        return str(text)

    def assistant_spans(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[tuple[int, int]] | None:
        """Return the spans of the assistant's turns in ``render(messages, tools=tools)``, characters.

        None if the template has no {% generation %} marks.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        template = self.tokenizer.chat_template
        if template is None or not re.search(r"\{%-?\s*generation\s*-?%\}", template):
            return None
        _, (spans,) = render_jinja_template(
            [list(messages)],
            tools=[dict(tool) for tool in tools] or None,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **self.tokenizer.special_tokens_map,
        )
        return [(int(start), int(end)) for start, end in spans]

    @property
    def template(self) -> str:
        """The source of the chat template; empty: there is none."""
        return str(self.tokenizer.chat_template or "")

    @property
    def eos_id(self) -> int | None:
        """The id that ends a plain-text response of a dataset; None if the model has none."""
        own = self.tokenizer.eos_token_id
        return own if own is not None else next(iter(self.eos_ids), None)

    def decode(self, ids: Sequence[int]) -> str:
        """Return a response as text without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def decode_response(self, ids: Sequence[int]) -> str:
        """Return a sampled response as rewards read it: with special tokens, but without the end token."""
        end = len(ids)
        while end and ids[end - 1] in self.eos_ids:
            end -= 1
        return str(self.tokenizer.decode(list(ids[:end]), skip_special_tokens=False))

    def decode_prompt(self, ids: Sequence[int]) -> str:
        """Return a prompt as text with special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, with its spaces and special tokens as in the whole text."""
        # Some tokenizers drop the space before a single token, so each is decoded with its predecessor.
        strings, before = [], ""
        for i, token in enumerate(ids):
            pair = self.decode_prompt([*ids[max(i - 1, 0) : i], token])
            strings.append(pair[len(before) :])
            before = self.decode_prompt([token])
        return strings


def _eos_ids(folder: Path, tokenizer: object) -> tuple[int, ...]:
    """Return every id that ends a response: the tokenizer's and those of generation_config.json."""
    eos_ids = {getattr(tokenizer, "eos_token_id", None)}
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            stated = read_json(path, f"model folder '{folder}'").get("eos_token_id")
            ids = stated if isinstance(stated, list) else [stated]
            if not all(each is None or (isinstance(each, int) and each >= 0) for each in ids):
                raise ConfigError(
                    f"model folder '{folder}': {name} must give eos_token_id as a token id, or a list of "
                    f"them, got {stated!r}; restore the file, or import the model again."
                )
            eos_ids.update(ids)
    return tuple(sorted(token for token in eos_ids if token is not None))
