"""Attention heads of a model folder: which vLLM can compute, and what their keys and values take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

__all__ = ["Heads"]


class Heads(NamedTuple):
    """What config.json says of them."""

    num: int
    num_keys: int
    """Heads of keys and values."""
    width: int
    is_latent: bool
    """Whether keys and values are made from one small vector a token, which all heads read."""
    num_layers: int

    @classmethod
    def read(cls, folder: str) -> Heads:
        config = json.loads((Path(folder) / "config.json").read_text())
        num = config["num_attention_heads"]
        return cls(
            num=num,
            num_keys=config.get("num_key_value_heads") or num,
            width=config.get("head_dim") or config["hidden_size"] // num,
            is_latent=config.get("kv_lora_rank") is not None,
            num_layers=config["num_hidden_layers"],
        )

    def numbers_a_token(self, ranks: int) -> int:
        """Returns how many numbers a token's keys and values are on each of ``ranks`` that share them."""
        return 2 * self.num_layers * -(-self.num_keys // ranks) * self.width
