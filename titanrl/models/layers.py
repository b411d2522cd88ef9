"""The layers of a model as TorchTitan's configs: attention, feed-forward, experts."""

from __future__ import annotations

from functools import partial

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from torchtitan.models.common import Linear, RMSNorm, RoPE
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
from torchtitan.protocols.module import Module

from titanrl.models.experts import PreciseExperts
from titanrl.models.family import TorchTitanModel
from titanrl.models.hf_config import HFConfig

__all__ = ["grouped_query_attention", "layers", "linear", "norm"]

# The checkpoint's weights always replace the initial ones.
_NORM_INIT = {"weight": torch.nn.init.ones_}
_LINEAR_INIT = {"weight": partial(torch.nn.init.normal_, std=0.02)}


def norm(dim: int, eps: float) -> RMSNorm.Config:
    """Returns an RMS norm over ``dim`` numbers."""
    return RMSNorm.Config(normalized_shape=dim, eps=eps, param_init=_NORM_INIT)


def layers(
    config: HFConfig, model: TorchTitanModel, *, inner: Module.Config, max_length: int
) -> list[TransformerBlock.Config]:
    """Returns a config for each layer.

    Args:
        config: the model's.
        model: TorchTitan's classes of the family.
        inner: inner attention of every layer.
        max_length: positions of the rotary table, tokens.
    """
    blocks = []
    for layer in range(config.num_layers):
        is_dense = config.experts is None or layer in config.experts.dense_layers
        blocks.append(
            model.block.Config(
                attention_norm=norm(config.dim, config.norm_eps),
                ffn_norm=norm(config.dim, config.norm_eps),
                attention=model.attention(config, inner, max_length),
                feed_forward=_feed_forward(config, config.hidden_dim) if is_dense else None,
                moe=None if is_dense else _mixture(config),
            )
        )
    return blocks


def linear(inputs: int, outputs: int) -> Linear.Config:
    """Returns a linear map without bias."""
    return Linear.Config(in_features=inputs, out_features=outputs, param_init=_LINEAR_INIT)


def _feed_forward(config: HFConfig, hidden_dim: int) -> FeedForward.Config:
    return make_ffn_config(
        dim=config.dim, hidden_dim=hidden_dim, w1_param_init=_LINEAR_INIT, w2w3_param_init=_LINEAR_INIT
    )


def grouped_query_attention(
    config: HFConfig, inner: Module.Config, *, rope: RoPE.Config, qk_norm: RMSNorm.Config | None = None
) -> BaseAttention.Config:
    """Returns attention whose heads of keys and values may be fewer than those of queries.

    Args:
        config: the model's.
        inner: computes attention from queries, keys and values.
        rope: rotary embedding of queries and keys.
        qk_norm: norm of queries and keys; None: they are not normalized.
    """
    return make_gqa_config(
        dim=config.dim,
        n_heads=config.num_heads,
        n_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        wqkv_param_init=_LINEAR_INIT,
        wo_param_init=_LINEAR_INIT,
        inner_attention=inner,
        fuse_qkv=True,
        rope=rope,
        qk_norm=qk_norm,
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
        # Any number allocates the bias; the hook that would update it is not registered.
        load_balance_coeff=1.0 if experts.has_bias else None,
    )
