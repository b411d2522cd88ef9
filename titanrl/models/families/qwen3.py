"""Qwen3's dense models: grouped-query attention with normalized queries and keys."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from titanrl.models.attention_sizes import (
    grouped_query_activations,
    grouped_query_heads,
    grouped_query_parameters,
)
from titanrl.models.family import ModelFamily, TinySizes, TorchTitanModel
from titanrl.models.hf_config import HFConfig, decoder_config

if TYPE_CHECKING:
    from torchtitan.models.common.attention import BaseAttention
    from torchtitan.protocols.module import Module

__all__ = ["FAMILY"]


def torchtitan_model() -> TorchTitanModel:
    """Returns TorchTitan's classes and functions, which are the same with and without experts."""
    import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan
    from torchtitan.models.qwen3 import Qwen3Model, parallelize_qwen3
    from torchtitan.models.qwen3.model import Qwen3TransformerBlock
    from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config
    from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

    return TorchTitanModel(
        model=Qwen3Model,
        block=Qwen3TransformerBlock,
        adapter=Qwen3StateDictAdapter,
        parallelize=parallelize_qwen3,
        set_sharding=set_qwen3_sharding_config,
        attention=attention,
    )


def attention(config: HFConfig, inner: Module.Config, max_length: int) -> BaseAttention.Config:
    """Returns grouped-query attention with normalized queries and keys."""
    import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan
    from torchtitan.models.common import CosSinRoPE

    from titanrl.models.layers import grouped_query_attention, norm

    rope = CosSinRoPE.Config(dim=config.head_dim, max_seq_len=max_length, theta=config.rope_theta)
    return grouped_query_attention(config, inner, rope=rope, qk_norm=norm(config.head_dim, config.norm_eps))


def tiny_config(sizes: TinySizes) -> dict[str, Any]:
    """Returns transformers' arguments for the attention of a tiny model."""
    return {
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "tie_word_embeddings": sizes.tied,
    }


FAMILY = ModelFamily(
    name="qwen3",
    model_types=("qwen3",),
    class_name="Qwen3",
    read_config=decoder_config,
    torchtitan=torchtitan_model,
    shardable_heads=grouped_query_heads,
    attention_parameters=partial(grouped_query_parameters, qk_norm=True),
    attention_activations=partial(grouped_query_activations, qk_norm=True),
    tiny_config=tiny_config,
)
