"""Sizes of grouped-query attention: parameters, activations, heads that can be sharded."""

from __future__ import annotations

from math import gcd

from titanrl.models.hf_config import HFConfig

__all__ = ["grouped_query_activations", "grouped_query_heads", "grouped_query_parameters"]


def grouped_query_parameters(config: HFConfig, *, qk_norm: bool = False) -> int:
    """Returns the number of parameters of the attention of a layer.

    Args:
        config: the model's.
        qk_norm: whether queries and keys are normalized, each with a weight per dimension of a head.
    """
    norms = 2 * config.head_dim if qk_norm else 0
    return 2 * config.dim * config.head_dim * (config.num_heads + config.num_kv_heads) + norms


def grouped_query_activations(config: HFConfig, *, qk_norm: bool = False) -> int:
    """Returns how many float32 numbers per token the attention of a layer keeps for the backward pass.

    Args:
        config: the model's.
        qk_norm: whether queries and keys are normalized, which keeps both once more.
    """
    return (6 if qk_norm else 4) * config.head_dim * (config.num_heads + config.num_kv_heads)


def grouped_query_heads(config: HFConfig) -> int:
    """Returns the number that tensor_parallel_degree must divide: it divides both numbers of heads."""
    return gcd(config.num_heads, config.num_kv_heads)
