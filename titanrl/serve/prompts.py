"""Prompts of requests -> token ids, with limits that hold before anything is tokenized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from titanrl.data.prompts import conversation_text
from titanrl.data.rendered import content_text
from titanrl.errors import ConfigError
from titanrl.protocols import Prompt, RolloutRequest

if TYPE_CHECKING:
    from titanrl.data.tokenizer import ChatTokenizer
    from titanrl.protocols import Messages
    from titanrl.serve.best_of_n import GenerationRequest

__all__ = ["PromptEncoder", "longest_token"]


def longest_token(tokenizer: ChatTokenizer) -> int:
    """Return the number of characters of the longest token, at most."""
    return max(map(len, tokenizer.tokenizer.get_vocab()))


class PromptEncoder:
    """Tokenizes prompts; callable from several threads.

    Args:
        tokenizer: the model's tokenizer.
        vocab_size: number of token ids of the model.
        max_length: longest prompt + response, tokens.
        max_response_tokens: limit of a response if the request sets none.
        longest_token: number of characters of the longest token.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        vocab_size: int,
        max_length: int,
        max_response_tokens: int,
        longest_token: int,
    ) -> None:
        self._tokenizer, self._vocab_size, self._max_length = tokenizer, vocab_size, max_length
        self._max_response_tokens, self._longest_token = max_response_tokens, longest_token

    def max_tokens(self, request: GenerationRequest) -> int:
        """Return the token limit of a response to a request."""
        return self._max_response_tokens if request.max_tokens is None else request.max_tokens

    def __call__(self, request: GenerationRequest) -> list[RolloutRequest]:
        """Return one rollout request per response.

        Raises:
            ValueError: the prompt is invalid, cannot be tokenized, or is too long.
        """
        prompt, limit = request.prompt, self._max_length
        max_tokens = self.max_tokens(request)
        if isinstance(prompt, tuple) and prompt and isinstance(prompt[0], int):
            ids, text, conversation = self._check_ids(prompt, max_tokens)
        else:
            chat: Messages | str = prompt  # type: ignore[assignment]
            conversation = conversation_text(chat)
            # No tokenizer makes fewer tokens, and a text of many megabytes would take it minutes.
            if len(conversation) > limit * self._longest_token:
                raise ValueError(
                    f"the prompt has {len(conversation)} characters, more than {limit} tokens can hold; "
                    "shorten it, or start the server with a larger training.seq_len."
                )
            text = chat if isinstance(chat, str) else content_text(chat[-1])
            ids = self._encode(chat)
        if not ids:
            raise ValueError("prompt has no tokens; give it text.")
        self._check_length(len(ids), max_tokens)
        return [
            RolloutRequest(
                ids, request.seed, sample, text, request.reference or "", conversation=conversation
            )
            for sample in range(request.num_responses)
        ]

    def _check_ids(self, prompt: tuple[Any, ...], max_tokens: int) -> tuple[list[int], str, str]:
        self._check_length(len(prompt), max_tokens)
        ids = list(prompt)
        if max(ids) >= self._vocab_size:
            raise ValueError(f"prompt must have token ids < {self._vocab_size}, got {max(ids)}.")
        text = self._tokenizer.decode_prompt(ids)
        return ids, text, text

    def _check_length(self, count: int, max_tokens: int) -> None:
        if count + max_tokens > self._max_length:
            raise ValueError(
                f"the prompt has {count} tokens; with max_tokens = {max_tokens} that makes "
                f"{count + max_tokens}, more than {self._max_length}. Reduce max_tokens, shorten the prompt, "
                "or start the server with a larger training.seq_len."
            )

    def _encode(self, chat: Messages | str) -> list[int]:
        try:
            return self._tokenizer.encode(Prompt(chat))
        except ConfigError as error:
            raise ValueError(str(error)) from error
        except ValueError as error:
            raise ValueError(f"{'prompt' if isinstance(chat, str) else 'the chat'} {error}") from error
