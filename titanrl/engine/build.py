"""Builds a TorchTitan model from a Hugging Face folder: on meta, parallelized, allocated, loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from titanrl.models.accelerator import computes_bfloat16  # isort: skip  # before torchtitan

import torch
from torchtitan.config import TORCH_DTYPE_MAP, CompileConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.compile import apply_compile
from torchtitan.models.common import Linear
from torchtitan.models.common.decoder import Decoder
from torchtitan.protocols.model_spec import ModelSpec

from titanrl.config.engine_tables import ActivationCheckpoint, Compile, Training
from titanrl.engine.allocate import allocate
from titanrl.engine.attention import attention_config
from titanrl.engine.heads.shared import ActorCriticHead
from titanrl.engine.heads.token import TokenHead
from titanrl.engine.heads.value import ValueHead
from titanrl.engine.mesh import Mesh
from titanrl.engine.model import Model
from titanrl.engine.weights.hf_folder import load_folder, rename_head
from titanrl.errors import ConfigError
from titanrl.models.hf_config import HFConfig
from titanrl.models.memory import needs_fsdp
from titanrl.models.mesh_checks import model_problems
from titanrl.models.read_config import read_config
from titanrl.models.spec import model_spec, set_sharding

__all__ = ["build_model", "head_precision"]

logger = logging.getLogger(__name__)

HeadKind: TypeAlias = Literal["language", "value", "shared"]


def build_model(
    folder: str,
    mesh: Mesh,
    *,
    training: Training,
    activation_checkpoint: ActivationCheckpoint,
    compile: Compile,
    head: HeadKind = "language",
    heads: Mapping[str, float] | None = None,
    head_dtype: str | None = None,
    dtype: str | None = None,
    trainable: bool = True,
    offload: bool = False,
) -> Model:
    """Returns the model of ``folder`` with its weights, wrapped by FSDP2 if that is needed.

    Gradients are summed over ranks, never averaged.

    Args:
        folder: Hugging Face folder.
        mesh: of the ranks.
        training: its sequence length and precisions.
        activation_checkpoint: applies to a trainable model only.
        compile: components to compile.
        head: the vocabulary's ("language"), a scalar one ("value"), or both on one backbone ("shared"). On
            the backbone of a language model a scalar head starts with weights of zero: every value is 0, on
            any mesh and for any seed.
        heads: names and weights of several scalar heads; None: one head.
        head_dtype: precision of a vocabulary head's products and log-probs; None: the compute precision.
            Scalar heads always compute in float32.
        dtype: of the parameters in memory; None: ``training.dtype``. Computation is in
            mixed_precision_param.
        trainable: whether parameters get gradients.
        offload: whether the parameters are in pinned CPU memory, from which FSDP2 copies them to the device
            when it gathers them; needs a GPU.

    Raises:
        ConfigError: an unknown model type; a value model where a language model is needed; seq_len beyond
            the model's context; degrees by which the model can't be sharded.
    """
    config = _checked_config(folder, mesh, training, is_value_model=head == "value")
    if training.mixed_precision_param == "bfloat16" and not computes_bfloat16() and trainable:
        logger.warning(
            "[training] mixed_precision_param = 'bfloat16' is emulated on this CPU: 'float32' is faster."
        )
    heads, is_value_model, pipelined = heads or {}, head == "value", mesh.dims.pp_enabled
    tied = config.tied and not is_value_model
    spec = model_spec(
        config,
        attention=attention_config(mesh.device.type),
        head=_head_config(config, head, tuple(heads.values()), head_dtype),
        max_length=training.seq_len,
        # Pipeline stages hold a copy each: see titanrl.engine.weights.tying.
        tied=tied and not pipelined,
    )
    set_sharding(
        spec,
        config,
        sequence_parallel=mesh.parallelism.enable_sequence_parallel,
        expert_parallel=mesh.dims.ep_enabled,
    )
    decoder = _build_on_meta(spec, TORCH_DTYPE_MAP[dtype or training.dtype])
    decoder.requires_grad_(trainable)
    compile_config = CompileConfig(
        enable=compile.enable, components=list(compile.components), backend=compile.backend
    )
    options: dict[str, Any] = {
        "parallel_dims": mesh.dims,
        "training": TrainingConfig(
            seq_len=training.seq_len,
            mixed_precision_param=training.mixed_precision_param,
            enable_cpu_offload=offload,
        ),
        "parallelism": mesh.parallelism,
        "compile_config": compile_config,
        "ac_config": _activation_checkpoint(activation_checkpoint) if trainable else None,
        "dump_folder": "",
    }
    model = Model(
        parts=[],
        adapter=spec.state_dict_adapter(spec.model, None),
        config=config,
        tied=tied,
        heads=heads,
        is_value_model=is_value_model,
        folder=folder,
    )
    if is_value_model:
        rename_head(model.adapter)
    if pipelined:
        schedule, model.parts, model.is_first, model.is_last = spec.pipelining_fn(
            decoder,
            device=mesh.device,
            model_config=spec.model,
            parallelize_fn=spec.parallelize_fn,
            loss_fn=_no_loss,
            **options,
        )
        model.stages = getattr(schedule, "_stages", None) or [schedule._stage]
        model.schedule_name = mesh.parallelism.pipeline_parallel_schedule
    elif needs_fsdp(mesh.world_size, dtype or training.dtype, training, offload=offload):
        model.parts = [spec.parallelize_fn(decoder, **options)]
    else:
        model.parts = [_without_parallelism(decoder, mesh, options["ac_config"], compile_config)]
    for part in model.parts:
        allocate(part, mesh.device, offload=offload)
        if pipelined:
            part._skip_lm_head = True
    _configure_fsdp(model, mesh)
    load_folder(model, folder)
    return model


def _checked_config(folder: str, mesh: Mesh, training: Training, *, is_value_model: bool) -> HFConfig:
    """Returns the facts of ``folder``, and refuses a model that cannot be built as configured."""
    config = read_config(folder)
    if training.seq_len > config.max_length:
        raise ConfigError(
            f"[training] seq_len must be at most {config.max_length}, the context of {folder}, "
            f"got {training.seq_len}."
        )
    if config.is_value_model and not is_value_model:
        raise ConfigError(
            f"[model] path must be a language model, got {folder!r}, a value model, whose head gives one "
            "number; choose another folder."
        )
    if problems := model_problems(config, mesh.parallelism, folder, training.mixed_precision_param):
        raise ConfigError(problems)
    return config


def _head_config(
    config: HFConfig, head: HeadKind, weights: tuple[float, ...], dtype: str | None
) -> Linear.Config:
    """Returns the head of ``config``'s sizes.

    Args:
        config: the model's.
        head: see build_model.
        weights: of several scalar heads; empty: one head.
        dtype: precision of a vocabulary head; None: the compute precision.
    """
    if head == "value":
        weights = weights or (1.0,)
        return ValueHead.Config(in_features=config.dim, out_features=len(weights), weights=weights)
    head_class = ActorCriticHead if head == "shared" else TokenHead
    return head_class.Config(
        in_features=config.dim, out_features=config.vocab_size, dtype=head_precision(dtype)
    )


def head_precision(dtype: str | None) -> torch.dtype | None:
    """Returns the dtype that a name stands for; None: the compute precision."""
    return None if dtype is None else TORCH_DTYPE_MAP[dtype]


def _build_on_meta(spec: ModelSpec, dtype: torch.dtype) -> Decoder:
    """Returns the whole model in ``dtype`` without memory."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            decoder: Decoder = spec.model.build()
    finally:
        torch.set_default_dtype(previous)
    return decoder


def _configure_fsdp(model: Model, mesh: Mesh) -> None:
    """Makes FSDP2 sum gradients, and reshard nothing on one data-parallel rank."""
    for module in model.fsdp_modules():
        # gloo has no PREMUL_SUM; gradients are plain sums anyway.
        module.set_force_sum_reduction_for_comms(True)
        if mesh.world_size == 1:
            # TorchTitan divides by 1: a pass over all gradients although nothing is communicated.
            module.set_gradient_divide_factor(None)  # type: ignore[arg-type]
        if mesh.single_dp_rank and mesh.parallelism.fsdp_reshard_after_forward == "default":
            # Nothing is sharded: resharding would only cast the weights once more.
            module.set_reshard_after_forward(False, recurse=False)


def _without_parallelism(
    model: Decoder,
    mesh: Mesh,
    activation_checkpoint: FullAC.Config | SelectiveAC.Config | None,
    compile_config: CompileConfig,
) -> Decoder:
    """Applies what TorchTitan's parallelize functions do besides parallelism, and returns the model."""
    if activation_checkpoint is not None:
        activation_checkpoint.build(dump_folder="").apply(model)
    if compile_config.enable and "model" in compile_config.components:
        apply_compile(model, compile_config=compile_config, parallel_dims=mesh.dims)
    return model


def _no_loss(*_: Any) -> Any:
    raise AssertionError("the schedule that TorchTitan builds is used for its stages only")


def _activation_checkpoint(table: ActivationCheckpoint) -> FullAC.Config | SelectiveAC.Config | None:
    if table.mode == "none":
        return None
    policy = FullAC if table.mode == "full" else SelectiveAC
    return replace(
        policy.Config(),
        preserve_rng_state=table.preserve_rng_state,
        determinism_check=table.determinism_check,
    )
