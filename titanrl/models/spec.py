"""A Hugging Face folder's config.json as a TorchTitan ModelSpec: the Llama and Qwen3 dense families."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm, RoPE
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.llama3 import Llama3Model, parallelize_llama
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.llama3.sharding import set_llama3_sharding_config
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3 import Qwen3Model, parallelize_qwen3
from torchtitan.models.qwen3.model import Qwen3TransformerBlock
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.protocols.module import Module

from titanrl.errors import ConfigError
from titanrl.models.folder import is_value_architecture, num_labels

__all__ = ["HFConfig", "model_spec", "set_sharding", "value_model_keys"]

_NORM_INIT = {"weight": torch.nn.init.ones_}
_LINEAR_INIT = {"weight": partial(torch.nn.init.normal_, std=0.02)}
# The checkpoint's weights always replace the initial ones; a tied embedding has none of its own.
_EMBEDDING_INIT = {"weight": skip_param_init}
_FAMILIES = {"Llama": "llama3", "Qwen3": "qwen3"}
_LANGUAGE, _VALUE = "ForCausalLM", "ForSequenceClassification"
_ARCHITECTURES = {
    f"{name}{kind}": family for name, family in _FAMILIES.items() for kind in (_LANGUAGE, _VALUE)
}


@dataclass(frozen=True, slots=True)
class HFConfig:
    """The keys of a config.json that decide the computation."""

    family: str
    """"llama3" or "qwen3"."""
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

    @classmethod
    def read(cls, folder: str | Path) -> HFConfig:
        """Reads ``folder/config.json``.

        Raises:
            ConfigError: no such file; an architecture, number of labels, bias, activation or rope that isn't
                computed here.
        """
        path = Path(folder) / "config.json"
        if not path.is_file():
            raise ConfigError(
                f"[model] path has no config.json, got {str(folder)!r}; give a Hugging Face folder, or fetch "
                "a model with `titanrl model get`."
            )
        raw = json.loads(path.read_text())
        architectures = raw.get("architectures") or []
        architecture = next((name for name in architectures if name in _ARCHITECTURES), None)
        if architecture is None:
            raise ConfigError(
                f"{path} architectures must be one of {', '.join(_ARCHITECTURES)}, got {architectures}."
            )
        family = _ARCHITECTURES[architecture]
        is_value_model = is_value_architecture(architecture)
        if is_value_model and num_labels(raw) != 1:
            raise ConfigError(
                f"{path} must have 1 label (id2label) to be a value model, got {num_labels(raw)}."
            )
        for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
            if raw.get(key):
                raise ConfigError(f"{path} {key} must be false, got {raw[key]}.")
        if raw.get("hidden_act", "silu") != "silu":
            raise ConfigError(f"{path} hidden_act must be 'silu', got {raw['hidden_act']!r}.")
        # transformers 5 writes rope_parameters; earlier versions rope_theta and rope_scaling.
        rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "llama3") or (kind == "llama3" and family == "qwen3"):
            raise ConfigError(
                f"{path} rope_type {kind!r} is not computed for {architectures}; use 'default'."
            )
        return cls(
            family=family,
            dim=raw["hidden_size"],
            num_layers=raw["num_hidden_layers"],
            num_heads=raw["num_attention_heads"],
            num_kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
            head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            hidden_dim=raw["intermediate_size"],
            vocab_size=raw["vocab_size"],
            max_length=raw["max_position_embeddings"],
            norm_eps=raw["rms_norm_eps"],
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
            rope_scaling=rope if kind == "llama3" else {},
            tied=bool(raw.get("tie_word_embeddings", False)),
            is_value_model=is_value_model,
        )


def value_model_keys(architectures: list[str]) -> dict[str, Any]:
    """Returns what the config.json of a value model says beside what its language model's says."""
    names = [name.replace(_LANGUAGE, _VALUE) for name in architectures]
    return {"architectures": names, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def model_spec(
    config: HFConfig, *, attention: Module.Config, head: Linear.Config, max_length: int, tied: bool
) -> ModelSpec:
    """Returns TorchTitan's bundle of model config, parallelization and state-dict adapter.

    Args:
        attention: inner attention of every layer. head: the lm_head of ``config``'s sizes.
        max_length: positions for which the rotary table is made, tokens.
        tied: whether head and embedding are one parameter; pipeline stages cannot share one.
    """
    llama = config.family == "llama3"
    block = Llama3TransformerBlock if llama else Qwen3TransformerBlock

    def norm(dim: int) -> RMSNorm.Config:
        return RMSNorm.Config(normalized_shape=dim, eps=config.norm_eps, param_init=_NORM_INIT)

    layers = [
        block.Config(
            attention_norm=norm(config.dim),
            ffn_norm=norm(config.dim),
            attention=make_gqa_config(
                dim=config.dim,
                n_heads=config.num_heads,
                n_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                wqkv_param_init=_LINEAR_INIT,
                wo_param_init=_LINEAR_INIT,
                inner_attention=attention,
                fuse_qkv=True,
                rope=_rope(config, max_length),
                qk_norm=None if llama else norm(config.head_dim),
            ),
            feed_forward=make_ffn_config(
                dim=config.dim,
                hidden_dim=config.hidden_dim,
                w1_param_init=_LINEAR_INIT,
                w2w3_param_init=_LINEAR_INIT,
            ),
        )
        for _ in range(config.num_layers)
    ]
    model = (Llama3Model if llama else Qwen3Model).Config(
        dim=config.dim,
        vocab_size=config.vocab_size,
        tok_embeddings=Embedding.Config(
            num_embeddings=config.vocab_size, embedding_dim=config.dim, param_init=_EMBEDDING_INIT
        ),
        norm=norm(config.dim),
        lm_head=head,
        layers=layers,
        enable_weight_tying=tied,
    )
    return ModelSpec(
        name=config.family,
        flavor="",
        model=model,
        parallelize_fn=parallelize_llama if llama else parallelize_qwen3,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=Llama3StateDictAdapter if llama else Qwen3StateDictAdapter,
    )


def set_sharding(spec: ModelSpec, *, tensor_parallel_degree: int, sequence_parallel: bool) -> None:
    """Writes the tensor-parallel placements into the config, as its ``update_from_config`` would.

    That method imports TorchTitan's whole trainer for one isinstance, several seconds.

    Raises:
        ConfigError: a head count that the degree does not divide.
    """
    attention = spec.model.first_attention
    for name, count in (("heads", attention.n_heads), ("key-value heads", attention.n_kv_heads)):
        if count % tensor_parallel_degree:
            raise ConfigError(
                f"[parallelism] tensor_parallel_degree must divide the model's {count} {name}, "
                f"got {tensor_parallel_degree}."
            )
    if spec.name == "llama3":
        set_llama3_sharding_config(spec.model, enable_sp=sequence_parallel)
    else:
        set_qwen3_sharding_config(spec.model, enable_sp=sequence_parallel, enable_ep=False)


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
