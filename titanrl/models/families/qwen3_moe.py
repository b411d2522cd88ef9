"""Qwen3's mixtures of experts: Qwen3's attention, and a softmax router over experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from titanrl.models.config_file import ConfigFile
from titanrl.models.families import qwen3
from titanrl.models.family import TinySizes
from titanrl.models.hf_config import Experts, HFConfig, decoder_config

__all__ = ["FAMILY"]


def read_config(file: ConfigFile) -> HFConfig:
    """Returns the decoder's facts and the experts'."""
    config, raw = decoder_config(file), file.values
    layers, every = range(config.num_layers), raw.get("decoder_sparse_step", 1)
    dense = {layer for layer in layers if (layer + 1) % every} | set(raw.get("mlp_only_layers") or ())
    experts = Experts(
        # transformers 5 writes num_local_experts.
        count=raw.get("num_local_experts") or raw["num_experts"],
        per_token=file.positive("num_experts_per_tok"),
        hidden_dim=file.positive("moe_intermediate_size"),
        num_shared=0,
        dense_layers=frozenset(dense),
        scores="softmax",
        normalized=bool(raw.get("norm_topk_prob", False)),
        scale=1.0,
        num_groups=None,
        num_chosen_groups=None,
        has_bias=False,
    )
    return replace(config, experts=experts)


def tiny_config(sizes: TinySizes) -> dict[str, Any]:
    """Returns transformers' arguments for the attention and the experts of a tiny model."""
    return qwen3.tiny_config(sizes) | {
        "moe_intermediate_size": sizes.hidden // 2,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "num_experts": sizes.experts,
    }


FAMILY = replace(
    qwen3.FAMILY,
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    class_name="Qwen3Moe",
    read_config=read_config,
    has_experts=True,
    tiny_config=tiny_config,
)
