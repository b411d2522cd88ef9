"""The layers of each family as TorchTitan's configs: attention, feed-forward, experts."""

from __future__ import annotations

from functools import partial

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Linear, RMSNorm, RoPE
from torchtitan.models.common.attention import BaseAttention
from torchtitan.models.common.config_utils import (
    make_ffn_config,
    make_gqa_config,
    make_moe_config,
    make_router_config,
    make_token_dispatcher_config,
)
from torchtitan.models.common.decoder import TransformerBlock
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.moe import MoE, RoutedExperts
from torchtitan.models.deepseek_v3.model import Attention as MultiHeadLatentAttention
from torchtitan.models.deepseek_v3.model import DeepSeekV3TransformerBlock
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.qwen3.model import Qwen3TransformerBlock
from torchtitan.protocols.module import Module

from titanrl.models.experts import PreciseExperts
from titanrl.models.hf_config import HFConfig

__all__ = ["layers", "norm"]

_BLOCKS = {
    "llama3": Llama3TransformerBlock,
    "qwen3": Qwen3TransformerBlock,
    "deepseek_v3": DeepSeekV3TransformerBlock,
}
# The checkpoint's weights always replace the initial ones.
_NORM_INIT = {"weight": torch.nn.init.ones_}
_LINEAR_INIT = {"weight": partial(torch.nn.init.normal_, std=0.02)}


LATENT_EPS = 1e-6
"""Of the norms inside latent attention, whatever the config's rms_norm_eps: transformers' default."""


def norm(dim: int, eps: float) -> RMSNorm.Config:
    return RMSNorm.Config(normalized_shape=dim, eps=eps, param_init=_NORM_INIT)


def layers(config: HFConfig, *, attention: Module.Config, max_length: int) -> list[TransformerBlock.Config]:
    """Returns a config for each layer.

    Args:
        attention: inner attention of every layer. max_length: positions of the rotary table, tokens.
    """
    blocks = []
    for layer in range(config.num_layers):
        is_dense = config.experts is None or layer in config.experts.dense_layers
        blocks.append(
            _BLOCKS[config.family].Config(
                attention_norm=norm(config.dim, config.norm_eps),
                ffn_norm=norm(config.dim, config.norm_eps),
                attention=_attention(config, attention, max_length),
                feed_forward=_feed_forward(config, config.hidden_dim) if is_dense else None,
                moe=None if is_dense else _mixture(config),
            )
        )
    return blocks


def _linear(inputs: int, outputs: int) -> Linear.Config:
    return Linear.Config(in_features=inputs, out_features=outputs, param_init=_LINEAR_INIT)


def _feed_forward(config: HFConfig, hidden_dim: int) -> FeedForward.Config:
    return make_ffn_config(
        dim=config.dim, hidden_dim=hidden_dim, w1_param_init=_LINEAR_INIT, w2w3_param_init=_LINEAR_INIT
    )


def _attention(config: HFConfig, inner: Module.Config, max_length: int) -> BaseAttention.Config:
    if config.latent is not None:
        return _latent_attention(config, inner, max_length)
    return make_gqa_config(
        dim=config.dim,
        n_heads=config.num_heads,
        n_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        wqkv_param_init=_LINEAR_INIT,
        wo_param_init=_LINEAR_INIT,
        inner_attention=inner,
        fuse_qkv=True,
        rope=_rope(config, max_length),
        qk_norm=norm(config.head_dim, config.norm_eps) if config.family == "qwen3" else None,
    )


def _latent_attention(config: HFConfig, inner: Module.Config, max_length: int) -> BaseAttention.Config:
    sizes, heads = config.latent, config.num_heads
    assert sizes is not None
    queries, rank = heads * (sizes.plain_dim + sizes.rope_dim), sizes.query_rank
    return MultiHeadLatentAttention.Config(
        dim=config.dim,
        n_heads=heads,
        q_lora_rank=rank,
        kv_lora_rank=sizes.key_value_rank,
        qk_nope_head_dim=sizes.plain_dim,
        qk_rope_head_dim=sizes.rope_dim,
        v_head_dim=sizes.value_dim,
        wq=None if rank else _linear(config.dim, queries),
        wq_a=_linear(config.dim, rank) if rank else None,
        wq_b=_linear(rank, queries) if rank else None,
        # Without a rank it is asked for and never built.
        q_norm=norm(rank or 1, LATENT_EPS),
        wkv_a=_linear(config.dim, sizes.key_value_rank + sizes.rope_dim),
        kv_norm=norm(sizes.key_value_rank, LATENT_EPS),
        wkv_b=_linear(sizes.key_value_rank, heads * (sizes.plain_dim + sizes.value_dim)),
        wo=_linear(heads * sizes.value_dim, config.dim),
        inner_attention=inner,
        rope=ComplexRoPE.Config(dim=sizes.rope_dim, max_seq_len=max_length, theta=config.rope_theta),
    )


def _mixture(config: HFConfig) -> MoE.Config:
    experts = config.experts
    assert experts is not None
    return make_moe_config(
        num_experts=experts.count,
        router=make_router_config(
            dim=config.dim,
            num_experts=experts.count,
            gate_param_init=_LINEAR_INIT,
            top_k=experts.per_token,
            score_func=experts.scores,
            route_norm=experts.normalized,
            route_scale=experts.scale,
            num_expert_groups=experts.num_groups,
            num_limited_groups=experts.num_chosen_groups,
        ),
        routed_experts=RoutedExperts.Config(
            inner_experts=PreciseExperts.Config(
                dim=config.dim, hidden_dim=experts.hidden_dim, num_experts=experts.count
            ),
            token_dispatcher=make_token_dispatcher_config(
                num_experts=experts.count, top_k=experts.per_token, comm_backend="standard"
            ),
        ),
        shared_experts=(
            _feed_forward(config, experts.num_shared * experts.hidden_dim) if experts.num_shared else None
        ),
        # Any number makes room for the bias; the hook that would move it is not registered.
        load_balance_coeff=1.0 if experts.has_bias else None,
    )


def _rope(config: HFConfig, max_length: int) -> RoPE.Config:
    if config.family == "qwen3":
        return CosSinRoPE.Config(dim=config.head_dim, max_seq_len=max_length, theta=config.rope_theta)
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
