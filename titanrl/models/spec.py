"""A model's config.json as a TorchTitan ModelSpec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import Embedding, Linear
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.deepseek_v3 import DeepSeekV3Model, parallelize_deepseekv3
from torchtitan.models.deepseek_v3.sharding import set_deepseek_v3_sharding_config
from torchtitan.models.deepseek_v3.state_dict_adapter import DeepSeekV3StateDictAdapter
from torchtitan.models.llama3 import Llama3Model, parallelize_llama
from torchtitan.models.llama3.sharding import set_llama3_sharding_config
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3 import Qwen3Model, parallelize_qwen3
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.protocols.module import Module

from titanrl.models.hf_config import HFConfig
from titanrl.models.layers import layers, norm

__all__ = ["model_spec", "set_sharding"]

# The checkpoint's weights always replace the initial ones; a tied embedding has none of its own.
_EMBEDDING_INIT = {"weight": skip_param_init}


class _Family(NamedTuple):
    model: type[Decoder]
    parallelize: Callable[..., Decoder]
    set_sharding: Callable[..., None]
    adapter: type[Any]


_FAMILIES = {
    "llama3": _Family(Llama3Model, parallelize_llama, set_llama3_sharding_config, Llama3StateDictAdapter),
    "qwen3": _Family(Qwen3Model, parallelize_qwen3, set_qwen3_sharding_config, Qwen3StateDictAdapter),
    "deepseek_v3": _Family(
        DeepSeekV3Model, parallelize_deepseekv3, set_deepseek_v3_sharding_config, DeepSeekV3StateDictAdapter
    ),
}


def model_spec(
    config: HFConfig, *, attention: Module.Config, head: Linear.Config, max_length: int, tied: bool
) -> ModelSpec:
    """Returns TorchTitan's bundle of model config, parallelization and state-dict adapter.

    Args:
        attention: inner attention of every layer. head: the lm_head of ``config``'s sizes.
        max_length: positions for which the rotary table is made, tokens.
        tied: whether head and embedding are one parameter; pipeline stages cannot share one.
    """
    family = _FAMILIES[config.family]
    model = family.model.Config(
        dim=config.dim,
        vocab_size=config.vocab_size,
        tok_embeddings=Embedding.Config(
            num_embeddings=config.vocab_size, embedding_dim=config.dim, param_init=_EMBEDDING_INIT
        ),
        norm=norm(config.dim, config.norm_eps),
        lm_head=head,
        layers=layers(config, attention=attention, max_length=max_length),
        enable_weight_tying=tied,
    )
    return ModelSpec(
        name=config.family,
        flavor="",
        model=model,
        parallelize_fn=family.parallelize,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=family.adapter,
    )


def set_sharding(spec: ModelSpec, *, sequence_parallel: bool, expert_parallel: bool) -> None:
    """Writes the tensor- and expert-parallel placements into the config, as its ``update_from_config`` would.

    That method imports TorchTitan's whole trainer for one isinstance, several seconds.
    """
    experts = {} if spec.name == "llama3" else {"enable_ep": expert_parallel}
    _FAMILIES[spec.name].set_sharding(spec.model, enable_sp=sequence_parallel, **experts)
