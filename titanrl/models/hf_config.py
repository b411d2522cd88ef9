"""A Hugging Face folder's config.json: the keys that decide the computation; importing this loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrl.errors import ConfigError
from titanrl.models.folder import (
    ARCHITECTURES,
    FAMILIES,
    LANGUAGE,
    VALUE,
    is_value_architecture,
    num_labels,
    read_json,
    whole,
)

__all__ = ["Experts", "HFConfig", "LatentAttention", "value_model_keys"]


@dataclass(frozen=True, slots=True)
class Experts:
    """The feed-forward of a mixture of experts."""

    count: int
    per_token: int
    """Experts that compute each token."""
    hidden_dim: int
    """Width of one expert."""
    num_shared: int
    """Experts beside them that compute every token."""
    dense_layers: frozenset[int]
    """Layers with one feed-forward instead, of the model's own width."""
    scores: str
    """"softmax" or "sigmoid" of the router's logits."""
    normalized: bool
    """Whether the chosen experts' scores are divided by their sum."""
    scale: float
    """Factor of the scores."""
    num_groups: int | None
    """Groups of experts of which only some are chosen from; None: all are."""
    num_chosen_groups: int | None
    has_bias: bool
    """Whether a bias that is not trained is added to the scores for choosing, and for choosing alone."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """DeepSeek's attention, whose keys and values are made from one small vector a token."""

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
    """The keys of a config.json that decide the computation."""

    family: str
    """"llama3", "qwen3" or "deepseek_v3"."""
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
    tied: bool
    """Whether the head is the embedding's matrix."""
    is_value_model: bool
    """Whether the head gives one number, as transformers' ...ForSequenceClassification does."""
    experts: Experts | None = None
    """None: every layer has one feed-forward."""
    latent: LatentAttention | None = None
    """None: keys and values have heads of their own."""

    @classmethod
    def read(cls, folder: str | Path) -> HFConfig:
        """Reads ``folder/config.json``.

        Raises:
            ConfigError: no such file; an architecture, number of labels, bias, activation or rope that isn't
                computed here; a key that is missing or none of its kind.
        """
        path = Path(folder) / "config.json"
        if not path.is_file():
            raise ConfigError(
                f"[model] path has no config.json, got {str(folder)!r}; give a Hugging Face folder, or fetch "
                "a model with `titanrl model get`."
            )
        where = f"model folder '{folder}'"
        raw = read_json(path, where)
        try:
            return cls._of(raw, path, where)
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
            raise ConfigError(
                f"{where}: config.json {what}; restore the config.json that belongs to the weights, or "
                "import the model again."
            ) from None

    @classmethod
    def _of(cls, raw: dict[str, Any], path: Path, where: str) -> HFConfig:
        architectures = raw.get("architectures") or []
        architecture = next((name for name in architectures if name in ARCHITECTURES), None)
        if architecture is None:
            raise ConfigError(
                f"{path} architectures must be one of {', '.join(ARCHITECTURES)}, got {architectures}."
            )
        family = FAMILIES[architecture.removesuffix(LANGUAGE).removesuffix(VALUE)]
        is_value_model = is_value_architecture(architecture)
        if is_value_model and num_labels(raw) != 1:
            raise ConfigError(
                f"{path} must have 1 label (id2label) to be a value model, got {num_labels(raw)}."
            )
        off = ["attention_bias", "mlp_bias", "use_sliding_window"]
        off += ["tie_word_embeddings"] if family == "deepseek_v3" else []
        for key in off:
            if raw.get(key):
                raise ConfigError(f"{path} {key} must be false, got {raw[key]}.")
        if raw.get("hidden_act", "silu") != "silu":
            raise ConfigError(f"{path} hidden_act must be 'silu', got {raw['hidden_act']!r}.")
        # transformers 5 writes rope_parameters; earlier versions rope_theta and rope_scaling.
        rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "llama3") or (kind == "llama3" and family != "llama3"):
            raise ConfigError(
                f"{path} rope_type {kind!r} is not computed for {architectures}; use 'default'."
            )
        return cls(
            family=family,
            dim=whole(raw, "hidden_size", where),
            num_layers=whole(raw, "num_hidden_layers", where),
            num_heads=whole(raw, "num_attention_heads", where),
            num_kv_heads=raw.get("num_key_value_heads") or whole(raw, "num_attention_heads", where),
            head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            hidden_dim=whole(raw, "intermediate_size", where),
            vocab_size=whole(raw, "vocab_size", where),
            max_length=whole(raw, "max_position_embeddings", where),
            norm_eps=float(raw["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
            rope_scaling=rope if kind == "llama3" else {},
            tied=bool(raw.get("tie_word_embeddings", False)),
            is_value_model=is_value_model,
            experts=_experts(raw, architecture),
            latent=_latent_attention(raw, path) if family == "deepseek_v3" else None,
        )


def _experts(raw: Mapping[str, Any], architecture: str) -> Experts | None:
    if architecture.startswith("Qwen3Moe"):
        layers, every = range(raw["num_hidden_layers"]), raw.get("decoder_sparse_step", 1)
        dense = {layer for layer in layers if (layer + 1) % every} | set(raw.get("mlp_only_layers") or ())
        return Experts(
            # transformers 5 writes num_local_experts.
            count=raw.get("num_local_experts") or raw["num_experts"],
            per_token=raw["num_experts_per_tok"],
            hidden_dim=raw["moe_intermediate_size"],
            num_shared=0,
            dense_layers=frozenset(dense),
            scores="softmax",
            normalized=bool(raw.get("norm_topk_prob", False)),
            scale=1.0,
            num_groups=None,
            num_chosen_groups=None,
            has_bias=False,
        )
    if architecture.startswith("DeepseekV3"):
        return Experts(
            count=raw["n_routed_experts"],
            per_token=raw["num_experts_per_tok"],
            hidden_dim=raw["moe_intermediate_size"],
            num_shared=raw["n_shared_experts"],
            dense_layers=frozenset(range(raw["first_k_dense_replace"])),
            scores="sigmoid",
            normalized=bool(raw["norm_topk_prob"]),
            scale=float(raw["routed_scaling_factor"]),
            num_groups=raw["n_group"],
            num_chosen_groups=raw["topk_group"],
            has_bias=True,
        )
    return None


def _latent_attention(raw: Mapping[str, Any], path: Path) -> LatentAttention:
    if not raw.get("rope_interleave", True):
        raise ConfigError(f"{path} rope_interleave must be true, got false.")
    return LatentAttention(
        query_rank=raw["q_lora_rank"] or 0,
        key_value_rank=raw["kv_lora_rank"],
        plain_dim=raw["qk_nope_head_dim"],
        rope_dim=raw["qk_rope_head_dim"],
        value_dim=raw["v_head_dim"],
    )


def value_model_keys(architectures: list[str], heads: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what the config.json of a value model says beside what its language model's says.

    Args:
        heads: names of its numbers, where there are several.
    """
    names = [name.replace(LANGUAGE, VALUE) for name in architectures]
    labels = dict(enumerate(heads or ("LABEL_0",)))
    return {
        "architectures": names,
        "id2label": {str(number): name for number, name in labels.items()},
        "label2id": {name: number for number, name in labels.items()},
    }
