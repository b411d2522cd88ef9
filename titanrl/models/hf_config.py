"""The facts of a config.json that decide the computation, in the same fields for every family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from titanrl.errors import ConfigError
from titanrl.models.config_file import ConfigFile

__all__ = ["Experts", "HFConfig", "LatentAttention", "decoder_config"]


@dataclass(frozen=True, slots=True)
class Experts:
    """The feed-forward of a mixture of experts."""

    count: int
    per_token: int
    """Experts that compute each token."""
    hidden_dim: int
    """Width of one expert."""
    num_shared: int
    """Shared experts, which compute every token in addition."""
    dense_layers: frozenset[int]
    """Layers with one feed-forward instead, of the model's own width."""
    scores: str
    """"softmax" or "sigmoid" of the router's logits."""
    normalized: bool
    """Whether the chosen experts' scores are divided by their sum."""
    scale: float
    """Factor of the scores."""
    num_groups: int | None
    """Groups of experts, of which only some are chosen from; None: no groups."""
    num_chosen_groups: int | None
    has_bias: bool
    """Whether an untrained bias is added to the scores when experts are chosen, and only then."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention, whose keys and values are made from one small vector per token."""

    query_rank: int
    """Width of the queries' vector; 0: queries are made from the hidden state."""
    key_value_rank: int
    plain_dim: int
    """Part of a head's query and key without position."""
    rope_dim: int
    """Part of a head's query and key that is rotated."""
    value_dim: int


@dataclass(frozen=True, slots=True)
class HFConfig:
    """The facts of a config.json that decide the computation."""

    model_type: str
    """Hugging Face's name, which selects the family: titanrl.models.family.family_of."""
    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_dim: int
    vocab_size: int
    max_length: int
    """Context, tokens."""
    norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any]
    """Keys of a scaled rotary table; empty: not scaled."""
    tied: bool
    """Whether the head is the embedding's matrix."""
    is_value_model: bool
    """Whether the head gives one number, as transformers' ...ForSequenceClassification does."""
    experts: Experts | None = None
    """None: every layer has one feed-forward."""
    latent: LatentAttention | None = None
    """None: keys and values have heads of their own."""


def decoder_config(file: ConfigFile, *, scaled_rope: str | None = None) -> HFConfig:
    """Returns the facts that every decoder's config.json gives by the same keys.

    Args:
        file: the config.json.
        scaled_rope: the rope_type besides "default" that the family computes; None: no other.

    Raises:
        ConfigError: a bias, activation or rope that isn't computed here; a key that is missing or has
            another type.
    """
    raw = file.values
    file.require_false("attention_bias", "mlp_bias", "use_sliding_window")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{file.path} hidden_act must be 'silu', got {raw['hidden_act']!r}.")
    # transformers 5 writes rope_parameters; earlier versions rope_theta and rope_scaling.
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ("default", scaled_rope):
        raise ConfigError(
            f"{file.path} rope_type {rope_type!r} is not computed for model_type {raw['model_type']!r}; "
            "use 'default'."
        )
    dim, heads = file.positive("hidden_size"), file.positive("num_attention_heads")
    kv_heads = file.positive("num_key_value_heads") if raw.get("num_key_value_heads") is not None else heads
    head_dim = file.positive("head_dim") if raw.get("head_dim") is not None else dim // heads
    if heads % kv_heads:
        raise ConfigError(
            f"{file.path} num_key_value_heads must divide num_attention_heads = {heads}, got {kv_heads}."
        )
    if not head_dim:
        raise ConfigError(f"{file.path} hidden_size must be >= num_attention_heads = {heads}, got {dim}.")
    return HFConfig(
        model_type=raw["model_type"],
        dim=dim,
        num_layers=file.positive("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_dim=file.positive("intermediate_size"),
        vocab_size=file.positive("vocab_size"),
        max_length=file.positive("max_position_embeddings"),
        norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        rope_scaling=rope if rope_type != "default" else {},
        tied=bool(raw.get("tie_word_embeddings", False)),
        is_value_model=file.is_value_model,
    )
