"""A TorchTitan model from a Hugging Face folder.

Built on meta, parallelized, given memory, filled with weights.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from titanrl.models.accelerator import computes_bfloat16  # isort: skip  # before torchtitan

import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.config import TORCH_DTYPE_MAP, CompileConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.compile import apply_compile
from torchtitan.models.common.decoder import Decoder
from torchtitan.protocols.state_dict_adapter import StateDictAdapter

from titanrl.config.engine_tables import ActivationCheckpoint, Compile, Training
from titanrl.engine.allocate import allocate
from titanrl.engine.attention import attention_config
from titanrl.engine.heads.shared import ActorCriticHead
from titanrl.engine.heads.token import Head, TokenHead
from titanrl.engine.heads.value import ValueHead
from titanrl.engine.mesh import Mesh
from titanrl.engine.weights.hf_folder import load_folder, rename_head
from titanrl.errors import ConfigError
from titanrl.models.hf_config import HFConfig
from titanrl.models.memory import needs_fsdp
from titanrl.models.mesh_checks import model_problems
from titanrl.models.spec import model_spec, set_sharding

__all__ = ["Model", "build_model"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Model:
    """A model on the mesh. Pipeline stages of this rank are its parts; without pipelining there is one."""

    parts: list[Decoder]
    adapter: StateDictAdapter
    config: HFConfig
    tied: bool
    """Whether head and embedding are one parameter, of which both ends of a pipeline have a copy."""
    heads: Mapping[str, float]
    """Names and weights of scalar heads, where there are several."""
    is_value_model: bool
    """Whether the head is scalar, wherever in the pipeline it is."""
    folder: str
    stages: list[Any] = field(default_factory=list)
    """Pipeline stages of this rank, torch's wrappers of the parts; none without pipelining."""
    schedule_name: str = ""
    schedule: Any = None
    """The pipeline schedule last used, and the number and length of micro-batches it is for."""
    schedule_sizes: tuple[int, int] = (0, 0)
    is_first: bool = True
    """Whether this rank holds the embedding."""
    is_last: bool = True
    """Whether this rank holds the head."""

    @property
    def head(self) -> Head:
        """The lm_head or scalar head, on the rank of the last stage."""
        head = self.parts[-1].lm_head
        assert isinstance(head, Head)
        return head

    @property
    def inner_attention(self) -> Any:
        """Config of the attention inside every layer."""
        return self.parts[0].config.first_attention.inner_attention

    def fsdp_modules(self) -> list[FSDPModule]:
        return [module for part in self.parts for module in part.modules() if isinstance(module, FSDPModule)]

    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for part in self.parts for parameter in part.parameters()]


def build_model(
    folder: str,
    mesh: Mesh,
    *,
    training: Training,
    activation_checkpoint: ActivationCheckpoint,
    compile: Compile,
    head: Literal["language", "value", "shared"] = "language",
    heads: Mapping[str, float] | None = None,
    dtype: str | None = None,
    trainable: bool = True,
    offload: bool = False,
) -> Model:
    """Returns the model of ``folder`` with its weights, wrapped by FSDP2 where that has something to do.

    Gradients are summed over ranks, never averaged.

    Args:
        head: the vocabulary's, a scalar one, or both on one body. On the body of a language model a scalar
            head begins with weights of zero: every value is 0, on any mesh and for any seed.
        heads: names and weights of several scalar heads; None: there is one.
        dtype: of the parameters in memory; omitted: ``training.dtype``. Computation is in
            mixed_precision_param.
        offload: whether the parameters lie in pinned CPU memory, from where FSDP2 copies them to the device
            to gather them; needs a GPU.

    Raises:
        ConfigError: an unknown architecture; a value model where a language model is needed; seq_len beyond
            the model's context; degrees that the model can't be cut into.
    """
    config = HFConfig.read(folder)
    if training.seq_len > config.max_length:
        raise ConfigError(
            f"[training] seq_len must be at most {config.max_length}, the context of {folder}, "
            f"got {training.seq_len}."
        )
    is_value_model = head == "value"
    if config.is_value_model and not is_value_model:
        raise ConfigError(
            f"[model] path must be a language model, got {folder!r}, a value model, whose head gives one "
            "number; choose another folder."
        )
    if training.mixed_precision_param == "bfloat16" and not computes_bfloat16() and trainable:
        logger.warning(
            "[training] mixed_precision_param = 'bfloat16' is emulated on this CPU: 'float32' is faster."
        )
    if problems := model_problems(config, mesh.parallelism, folder):
        raise ConfigError(problems)
    pipelined = mesh.dims.pp_enabled
    tied = config.tied and not is_value_model
    heads = heads or {}
    weights = tuple(heads.values()) or (1.0,)
    scalar = ValueHead.Config(in_features=config.dim, out_features=len(weights), weights=weights)
    kind = ActorCriticHead if head == "shared" else TokenHead
    vocabulary = kind.Config(in_features=config.dim, out_features=config.vocab_size)
    spec = model_spec(
        config,
        attention=attention_config(mesh.device.type),
        head=scalar if is_value_model else vocabulary,
        max_length=training.seq_len,
        # Stages hold a copy each, see titanrl.engine.weights.tying.
        tied=tied and not pipelined,
    )
    set_sharding(
        spec,
        sequence_parallel=mesh.parallelism.enable_sequence_parallel,
        expert_parallel=mesh.dims.ep_enabled,
    )
    previous = torch.get_default_dtype()
    torch.set_default_dtype(TORCH_DTYPE_MAP[dtype or training.dtype])
    try:
        with torch.device("meta"):
            whole = spec.model.build()
    finally:
        torch.set_default_dtype(previous)
    whole.requires_grad_(trainable)
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
            whole,
            device=mesh.device,
            model_config=spec.model,
            parallelize_fn=spec.parallelize_fn,
            loss_fn=_no_loss,
            **options,
        )
        model.stages = getattr(schedule, "_stages", None) or [schedule._stage]
        model.schedule_name = mesh.parallelism.pipeline_parallel_schedule
    elif needs_fsdp(mesh.world_size, dtype or training.dtype, training, offload=offload):
        model.parts = [spec.parallelize_fn(whole, **options)]
    else:
        model.parts = [_bare(whole, mesh, options["ac_config"], compile_config)]
    for part in model.parts:
        allocate(part, mesh.device, offload=offload)
        if pipelined:
            part._skip_lm_head = True
    for module in model.fsdp_modules():
        # gloo has no PREMUL_SUM; a plain sum is what is wanted anyway.
        module.set_force_sum_reduction_for_comms(True)
        if mesh.world_size == 1:
            # TorchTitan asks for a division by 1, a pass over all gradients where nothing is communicated.
            module.set_gradient_divide_factor(None)  # type: ignore[arg-type]
        if mesh.single_dp_rank and mesh.parallelism.fsdp_reshard_after_forward == "default":
            # Nothing is sharded: freeing would only mean casting the weights once more.
            module.set_reshard_after_forward(False, recurse=False)
    load_folder(model, folder)
    return model


def _bare(
    model: Decoder,
    mesh: Mesh,
    activation_checkpoint: FullAC.Config | SelectiveAC.Config | None,
    compile_config: CompileConfig,
) -> Decoder:
    """Returns the model with what TorchTitan's parallelize functions do but for parallelism."""
    if activation_checkpoint is not None:
        activation_checkpoint.build(dump_folder="").apply(model)
    if compile_config.enable and "model" in compile_config.components:
        apply_compile(model, compile_config=compile_config, parallel_dims=mesh.dims)
    return model


def _no_loss(*_: Any) -> Any:
    raise AssertionError("the schedule that TorchTitan built only brings the stages")


def _activation_checkpoint(table: ActivationCheckpoint) -> FullAC.Config | SelectiveAC.Config | None:
    if table.mode == "none":
        return None
    kind = FullAC if table.mode == "full" else SelectiveAC
    return replace(
        kind.Config(),
        preserve_rng_state=table.preserve_rng_state,
        determinism_check=table.determinism_check,
    )
