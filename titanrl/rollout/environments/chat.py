"""A chat with the policy over several turns, whose sampled tokens stay as they were sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from titanrl.data.bridge import bridge
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.protocols import Ask, Sampling
from titanrl.protocols.environment import POLICY

__all__ = ["TemplateChat"]


class TemplateChat:
    """A chat in the model's template: see ``EnvironmentContext.chat``.

    Args:
        tokenizer: the model's tokenizer with its template.
        messages: the messages so far; text is one message of a user.
        ask: samples from the policy.
        tools: schemas of the functions that the policy may call.
        agent_id: agent that the policy plays.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        messages: Sequence[Mapping[str, Any]] | str,
        ask: Ask,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        agent_id: int = 0,
    ) -> None:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        self.messages = [dict(message) for message in messages]
        self.ids: list[int] = []
        """All tokens so far: the last prompt and the response to it."""
        self.is_branch = False
        """Whether the template rewrote earlier turns before the last request."""
        self._tokenizer, self._ask, self._agent_id = tokenizer, ask, agent_id
        self._tools = [dict(tool) for tool in tools] or None
        self._num_rendered = 0
        """Messages that ``ids`` hold, the policy's last one included."""
        self._end: int | None = None
        """The end token of the last response; None: it was cut off."""

    async def ask(self, sampling: Sampling = POLICY) -> dict[str, Any]:
        """See ``Chat``."""
        prompt = self._prompt()
        completion = await self._ask(prompt, sampling._replace(agent_id=self._agent_id))
        ids = list(completion.ids)
        self.ids = [*prompt, *ids]
        self._end = ids[-1] if ids and ids[-1] in self._tokenizer.eos_ids else None
        message = {"role": "assistant", "content": self._tokenizer.decode_response(ids)}
        if not self._num_rendered and self.messages[-1]["role"] == "assistant":
            # The response continues the last message of the prompt.
            prefill = self.messages.pop()
            message = {**prefill, "content": prefill["content"] + message["content"]}
        self.messages.append(message)
        self._num_rendered = len(self.messages)
        return message

    def add(self, *messages: Mapping[str, Any]) -> None:
        """See ``Chat``."""
        self.messages += [dict(message) for message in messages]

    def _prompt(self) -> list[int]:
        """Return the prompt of the next request: all tokens so far and what follows them, or a new start."""
        self.is_branch = False
        if self._num_rendered:
            before, after = self.messages[: self._num_rendered - 1], self.messages[self._num_rendered :]
            turn = self.messages[self._num_rendered - 1]
            between = bridge(self._tokenizer, before, turn, self._end, after, tools=self._tools)
            if between is not None:
                return [*self.ids, *between]
            self.is_branch = True
            text = self._tokenizer.render(self.messages, add_generation_prompt=True, tools=self._tools)
        else:
            text = self._tokenizer.render_prompt(self.messages, tools=self._tools)
        return self._tokenizer.encode_text(text)
