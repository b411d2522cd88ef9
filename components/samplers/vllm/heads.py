"""Attention heads of a model folder, and the size of their keys and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

__all__ = ["Heads"]


class Heads(NamedTuple):
    """Attention heads of a model, from its config.json."""

    num: int
    num_keys: int
    """Number of key-value heads."""
    width: int
    """Dimension of a head."""
    is_latent: bool
    """Whether keys and values are computed from one compressed vector per token that all heads share."""
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

    def values_per_token(self, ranks: int) -> int:
        """Returns the number of key and value elements per token on each of ``ranks`` that share the
        heads.
        """
        return 2 * self.num_layers * -(-self.num_keys // ranks) * self.width
