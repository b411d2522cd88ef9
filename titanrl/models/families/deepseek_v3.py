"""DeepSeek-V3: multi-head latent attention, and a sigmoid router over groups of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from titanrl.errors import ConfigError
from titanrl.models.config_file import ConfigFile
from titanrl.models.family import ModelFamily, TinySizes, TorchTitanModel
from titanrl.models.hf_config import Experts, HFConfig, LatentAttention, decoder_config

if TYPE_CHECKING:
    from torchtitan.models.common.attention import BaseAttention
    from torchtitan.protocols.module import Module

__all__ = ["FAMILY"]

LATENT_EPS = 1e-6
"""Epsilon of the norms inside latent attention, whatever the config's rms_norm_eps: transformers' default."""


def read_config(file: ConfigFile) -> HFConfig:
    """Returns the decoder's facts, the experts' and latent attention's."""
    config, raw = decoder_config(file), file.values
    file.require_false("tie_word_embeddings")
    if not raw.get("rope_interleave", True):
        raise ConfigError(f"{file.path} rope_interleave must be true, got false.")
    experts = Experts(
        count=file.positive("n_routed_experts"),
        per_token=file.positive("num_experts_per_tok"),
        hidden_dim=file.positive("moe_intermediate_size"),
        num_shared=file.count("n_shared_experts"),
        dense_layers=frozenset(range(file.count("first_k_dense_replace"))),
        scores="sigmoid",
        normalized=bool(raw["norm_topk_prob"]),
        scale=float(raw["routed_scaling_factor"]),
        num_groups=raw["n_group"],
        num_chosen_groups=raw["topk_group"],
        has_bias=True,
    )
    latent = LatentAttention(
        query_rank=raw["q_lora_rank"] or 0,
        key_value_rank=file.positive("kv_lora_rank"),
        plain_dim=file.positive("qk_nope_head_dim"),
        rope_dim=file.positive("qk_rope_head_dim"),
        value_dim=file.positive("v_head_dim"),
    )
    return replace(config, experts=experts, latent=latent)


def torchtitan_model() -> TorchTitanModel:
    """Returns TorchTitan's classes and functions."""
    import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan
    from torchtitan.models.deepseek_v3 import DeepSeekV3Model, parallelize_deepseekv3
    from torchtitan.models.deepseek_v3.model import DeepSeekV3TransformerBlock
    from torchtitan.models.deepseek_v3.sharding import set_deepseek_v3_sharding_config
    from torchtitan.models.deepseek_v3.state_dict_adapter import DeepSeekV3StateDictAdapter

    return TorchTitanModel(
        model=DeepSeekV3Model,
        block=DeepSeekV3TransformerBlock,
        adapter=DeepSeekV3StateDictAdapter,
        parallelize=parallelize_deepseekv3,
        set_sharding=set_deepseek_v3_sharding_config,
        attention=attention,
    )


def attention(config: HFConfig, inner: Module.Config, max_length: int) -> BaseAttention.Config:
    """Returns multi-head latent attention."""
    import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan
    from torchtitan.models.common import ComplexRoPE
    from torchtitan.models.deepseek_v3.model import Attention

    from titanrl.models.layers import linear, norm

    sizes, heads = _latent(config), config.num_heads
    queries, rank = heads * (sizes.plain_dim + sizes.rope_dim), sizes.query_rank
    return Attention.Config(
        dim=config.dim,
        n_heads=heads,
        q_lora_rank=rank,
        kv_lora_rank=sizes.key_value_rank,
        qk_nope_head_dim=sizes.plain_dim,
        qk_rope_head_dim=sizes.rope_dim,
        v_head_dim=sizes.value_dim,
        wq=None if rank else linear(config.dim, queries),
        wq_a=linear(config.dim, rank) if rank else None,
        wq_b=linear(rank, queries) if rank else None,
        # TorchTitan's config requires it and builds it only if there is a rank.
        q_norm=norm(rank or 1, LATENT_EPS),
        wkv_a=linear(config.dim, sizes.key_value_rank + sizes.rope_dim),
        kv_norm=norm(sizes.key_value_rank, LATENT_EPS),
        wkv_b=linear(sizes.key_value_rank, heads * (sizes.plain_dim + sizes.value_dim)),
        wo=linear(heads * sizes.value_dim, config.dim),
        inner_attention=inner,
        rope=ComplexRoPE.Config(dim=sizes.rope_dim, max_seq_len=max_length, theta=config.rope_theta),
    )


def attention_parameters(config: HFConfig) -> int:
    """Returns the number of parameters of the attention of a layer."""
    sizes, dim, heads = _latent(config), config.dim, config.num_heads
    rank, queries = sizes.query_rank, heads * (sizes.plain_dim + sizes.rope_dim)
    query = dim * rank + rank + rank * queries if rank else dim * queries
    keys = dim * (sizes.key_value_rank + sizes.rope_dim) + sizes.key_value_rank
    values = sizes.key_value_rank * heads * (sizes.plain_dim + sizes.value_dim)
    return query + keys + values + heads * sizes.value_dim * dim


def attention_activations(config: HFConfig) -> int:
    """Returns how many float32 numbers per token the attention of a layer keeps for the backward pass."""
    sizes = _latent(config)
    return 8 * config.num_heads * (sizes.plain_dim + sizes.rope_dim)


def shardable_heads(config: HFConfig) -> int:
    """Returns the number of heads: keys and values have as many as queries."""
    return config.num_heads


def tiny_config(sizes: TinySizes) -> dict[str, Any]:
    """Returns transformers' arguments for the attention and the experts of a tiny model."""
    return {
        "num_key_value_heads": sizes.heads,
        "head_dim": sizes.head_dim,
        "tie_word_embeddings": False,
        "moe_intermediate_size": sizes.hidden // 2,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "n_routed_experts": sizes.experts,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": sizes.hidden // 2,
        "kv_lora_rank": sizes.hidden // 2,
        "qk_nope_head_dim": sizes.head_dim,
        "qk_rope_head_dim": sizes.head_dim,
        "v_head_dim": sizes.head_dim,
    }


def _latent(config: HFConfig) -> LatentAttention:
    assert config.latent is not None, "read_config reads it"
    return config.latent


FAMILY = ModelFamily(
    name="deepseek_v3",
    model_types=("deepseek_v3",),
    class_name="DeepseekV3",
    read_config=read_config,
    torchtitan=torchtitan_model,
    has_experts=True,
    shardable_heads=shardable_heads,
    attention_parameters=attention_parameters,
    attention_activations=attention_activations,
    tiny_config=tiny_config,
)
