"""Llama 2 and 3, and models of the same architecture, such as SmolLM2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from titanrl.models.attention_sizes import (
    grouped_query_activations,
    grouped_query_heads,
    grouped_query_parameters,
)
from titanrl.models.config_file import ConfigFile
from titanrl.models.family import ModelFamily, TinySizes, TorchTitanModel
from titanrl.models.hf_config import HFConfig, decoder_config

if TYPE_CHECKING:
    from torchtitan.models.common.attention import BaseAttention
    from torchtitan.models.common.rope import RoPE
    from torchtitan.protocols.module import Module

__all__ = ["FAMILY"]


def read_config(file: ConfigFile) -> HFConfig:
    """Returns the decoder's facts; Llama 3.1's scaled rotary table is computed too."""
    return decoder_config(file, scaled_rope="llama3")


def torchtitan_model() -> TorchTitanModel:
    """Returns TorchTitan's classes and functions."""
    import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan
    from torchtitan.models.llama3 import Llama3Model, parallelize_llama
    from torchtitan.models.llama3.model import Llama3TransformerBlock
    from torchtitan.models.llama3.sharding import set_llama3_sharding_config
    from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter

    def set_sharding(model: Llama3Model.Config, *, enable_sp: bool, enable_ep: bool) -> None:
        assert not enable_ep, "a family without experts"
        set_llama3_sharding_config(model, enable_sp=enable_sp)

    return TorchTitanModel(
        model=Llama3Model,
        block=Llama3TransformerBlock,
        adapter=Llama3StateDictAdapter,
        parallelize=parallelize_llama,
        set_sharding=set_sharding,
        attention=attention,
    )


def attention(config: HFConfig, inner: Module.Config, max_length: int) -> BaseAttention.Config:
    """Returns grouped-query attention with complex rotary embeddings."""
    from titanrl.models.layers import grouped_query_attention

    return grouped_query_attention(config, inner, rope=_rope(config, max_length))


def _rope(config: HFConfig, max_length: int) -> RoPE.Config:
    import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan
    from torchtitan.models.common import ComplexRoPE

    scaling = config.rope_scaling
    if not scaling:
        return ComplexRoPE.Config(dim=config.head_dim, max_seq_len=max_length, theta=config.rope_theta)
    return ComplexRoPE.Config(
        dim=config.head_dim,
        max_seq_len=max_length,
        theta=config.rope_theta,
        scaling="llama",
        scaling_factor=scaling["factor"],
        low_freq_factor=scaling["low_freq_factor"],
        high_freq_factor=scaling["high_freq_factor"],
        original_max_position_embeddings=scaling["original_max_position_embeddings"],
    )


def tiny_config(sizes: TinySizes) -> dict[str, Any]:
    """Returns transformers' arguments for the attention of a tiny model."""
    return {
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "tie_word_embeddings": sizes.tied,
    }


FAMILY = ModelFamily(
    name="llama3",
    model_types=("llama",),
    class_name="Llama",
    read_config=read_config,
    torchtitan=torchtitan_model,
    shardable_heads=grouped_query_heads,
    attention_parameters=grouped_query_parameters,
    attention_activations=grouped_query_activations,
    tiny_config=tiny_config,
)
