"""Which prompts a step trains on: an endless shuffle whose whole state is one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from titanrl.errors import ConfigError
from titanrl.protocols import Prompt, PromptRow, PromptSource

__all__ = ["PromptFeed"]


class PromptFeed:
    """Walks a prompt source in a new order each epoch; the order is a function of (seed, position) alone.

    Args:
        source: the prompts. encode: prompt -> token ids. seed: of the shuffle.
        max_prompt_tokens: prompts longer than this are refused, never cut.

    Raises:
        ConfigError: the source is empty; later, a prompt is too long.
    """

    def __init__(
        self,
        source: PromptSource,
        encode: Callable[[Prompt], list[int]],
        *,
        seed: int,
        max_prompt_tokens: int,
        shuffle: bool = True,
        table: str = "prompts",
    ) -> None:
        if len(source) == 0:
            raise ConfigError(f"[{table}] holds no prompt; name a source with at least one.")
        self.source, self.encode, self.seed, self.shuffle, self.table = source, encode, seed, shuffle, table
        self.max_prompt_tokens = max_prompt_tokens
        self.position = 0
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def take(self, count: int, samples: int, first_group: int = 0) -> list[PromptRow]:
        """Returns ``count * samples`` rows: the next ``count`` prompts, each for ``samples`` answers.

        Args:
            first_group: number of the first of these groups in its step; it enters the samples' seeds.
        """
        rows: list[PromptRow] = []
        for group in range(first_group, first_group + count):
            index = self._index(self.position)
            self.position += 1
            prompt = self.source[index]
            ids = self.encode(prompt)
            if len(ids) > self.max_prompt_tokens:
                raise ConfigError(
                    f"[{self.table}] prompt {index} has {len(ids)} tokens, more than the "
                    f"{self.max_prompt_tokens} that [training] seq_len leaves beside "
                    f"[sampler] max_response_tokens; raise seq_len or drop the prompt."
                )
            text = prompt.messages if isinstance(prompt.messages, str) else prompt.messages[-1]["content"]
            rows += [
                PromptRow(prompt_ids=ids, group=group, sample=sample, text=text, answer=prompt.answer)
                for sample in range(samples)
            ]
        return rows

    def _index(self, position: int) -> int:
        epoch, offset = divmod(position, len(self.source))
        if not self.shuffle:
            return offset
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
            self._epoch, self._order = epoch, torch.randperm(len(self.source), generator=generator)
        return int(self._order[offset])

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position = int(state_dict["position"])
