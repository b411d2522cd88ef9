"""A model's config.json as a TorchTitan ModelSpec."""

from __future__ import annotations

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import Embedding, Linear
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.protocols.module import Module

from titanrl.models.family import family_of
from titanrl.models.hf_config import HFConfig
from titanrl.models.layers import layers, norm

__all__ = ["model_spec", "set_sharding"]

# The checkpoint's weights always replace the initial ones; a tied embedding has none of its own.
_EMBEDDING_INIT = {"weight": skip_param_init}


def model_spec(
    config: HFConfig, *, attention: Module.Config, head: Linear.Config, max_length: int, tied: bool
) -> ModelSpec:
    """Returns TorchTitan's bundle of model config, parallelization and state-dict adapter.

    Args:
        config: the model's.
        attention: inner attention of every layer.
        head: the lm_head of ``config``'s sizes.
        max_length: positions for which the rotary table is made, tokens.
        tied: whether head and embedding are one parameter; pipeline stages cannot share one.
    """
    family = family_of(config.model_type)
    torchtitan = family.torchtitan()
    model = torchtitan.model.Config(
        dim=config.dim,
        vocab_size=config.vocab_size,
        tok_embeddings=Embedding.Config(
            num_embeddings=config.vocab_size, embedding_dim=config.dim, param_init=_EMBEDDING_INIT
        ),
        norm=norm(config.dim, config.norm_eps),
        lm_head=head,
        layers=layers(config, torchtitan, inner=attention, max_length=max_length),
        enable_weight_tying=tied,
    )
    return ModelSpec(
        name=family.name,
        flavor="",
        model=model,
        parallelize_fn=torchtitan.parallelize,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=torchtitan.adapter,
    )


def set_sharding(
    spec: ModelSpec, config: HFConfig, *, sequence_parallel: bool, expert_parallel: bool
) -> None:
    """Writes the tensor- and expert-parallel placements into the spec, as its ``update_from_config`` would.

    That method imports TorchTitan's whole trainer for one isinstance, several seconds.

    Args:
        spec: changed in place.
        config: the one that ``spec`` was made from.
        sequence_parallel: whether activations between layers are sharded over tensor-parallel ranks.
        expert_parallel: whether experts are sharded over ranks.
    """
    torchtitan = family_of(config.model_type).torchtitan()
    torchtitan.set_sharding(spec.model, enable_sp=sequence_parallel, enable_ep=expert_parallel)
