"""Estimates the memory of a run's fullest rank from the config.json of its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from titanrl.models.family import family_of
from titanrl.models.hf_config import HFConfig
from titanrl.models.mesh_checks import STAGES_PER_RANK

if TYPE_CHECKING:
    from titanrl.config.engine_tables import ActivationCheckpoint, Optimizer, Parallelism, Training

__all__ = ["Model", "MemoryEstimate", "estimate_memory", "needs_fsdp", "parameters"]

BYTES = {"float32": 4, "bfloat16": 2}
PREFETCHED = 2
"""Blocks whose unsharded weights exist at one time: the current one and the next one."""


class MemoryEstimate(NamedTuple):
    """Memory of one part of a run, bytes."""

    name: str
    size: int
    is_on_host: bool = False
    """Whether it is in CPU memory while the rest is on a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of a run."""

    name: str
    config: HFConfig
    is_value_model: bool
    dtype: str
    """Precision of its weights."""
    optimizer: Optimizer | None
    """None: it is frozen."""
    offload: bool = False
    """Whether its weights stay in CPU memory between passes."""
    head_dtype: str | None = None
    """Precision of its vocabulary head; None: the compute precision."""
    has_critic: bool = False
    """Whether a critic's head is on its backbone."""


def estimate_memory(
    models: Sequence[Model],
    mesh: Parallelism,
    training: Training,
    checkpoint: ActivationCheckpoint,
    world_size: int,
    transient: Sequence[MemoryEstimate] = (),
) -> list[MemoryEstimate]:
    """Returns the peak memory of the fullest rank, without a sampler's own weights, keys and values.

    Weights, gradients and moments are counted exactly; unsharded weights and activations by a rule. An
    offloaded model is unsharded while the batch is scored, when there are no activations: the larger counts.

    Args:
        models: of the run.
        mesh: the parallelism degrees.
        training: sequence length and precisions.
        checkpoint: activation checkpointing.
        world_size: number of ranks.
        transient: further memory that is used only while the batch is scored.
    """
    estimates, transient = [], list(transient)
    for model in models:
        stages = _stages(model, mesh)
        blocks = max(stages, key=lambda units: sum(units))
        tensor_degree = mesh.tensor_parallel_degree
        shards = _shards(mesh, world_size)
        size = -(-sum(blocks) // (tensor_degree * shards))
        weights, compute = BYTES[model.dtype], BYTES[training.mixed_precision_param]
        estimates.append(MemoryEstimate(f"{model.name}: weights", size * weights, is_on_host=model.offload))
        size_unsharded = sum(blocks) if shards == 1 else sum(sorted(blocks)[-PREFETCHED - 1 :])
        if needs_fsdp(world_size, model.dtype, training, offload=model.offload):
            unsharded = MemoryEstimate(
                f"{model.name}: gathered weights", size_unsharded // tensor_degree * compute
            )
            (transient if model.offload else estimates).append(unsharded)
        if model.optimizer is None:
            continue
        moments = 2 if model.optimizer.implementation == "fused_opt_states_bf16" else weights
        estimates.append(MemoryEstimate(f"{model.name}: gradients", size * weights))
        estimates.append(
            MemoryEstimate(f"{model.name}: moments of {model.optimizer.name}", size * 2 * moments)
        )
    heads = [_cast_head(model, training) // mesh.tensor_parallel_degree for model in models]
    if largest := max(heads, default=0):
        estimates.append(MemoryEstimate("head cast to float32", largest))
    trained = [model for model in models if model.optimizer is not None]
    sizes = [activations(model, mesh, training, checkpoint.mode) for model in trained]
    transient.append(MemoryEstimate("activations", max(sizes, default=0)))
    return [*estimates, max(transient, key=lambda estimate: estimate.size)]


def _cast_head(model: Model, training: Training) -> int:
    """Returns the memory of the copy of a head that exists in a pass if its precision is another, bytes."""
    if model.is_value_model or model.head_dtype in (None, training.mixed_precision_param):
        return 0
    return model.config.vocab_size * model.config.dim * BYTES[model.head_dtype]


def needs_fsdp(world_size: int, dtype: str, training: Training, *, offload: bool) -> bool:
    """Whether FSDP2 must shard the weights, or cast or fetch them for each pass.

    If not, FSDP2 would only hold a second copy of all weights and update it in each step.

    Args:
        world_size: number of ranks.
        dtype: of the weights in memory.
        training: gives the compute precision.
        offload: whether the weights are in CPU memory.
    """
    return world_size > 1 or offload or dtype != training.mixed_precision_param


def activations(model: Model, mesh: Parallelism, training: Training, mode: str) -> int:
    """Returns the memory that a forward pass of a full micro-batch keeps for the backward pass, bytes.

    A rule, not a count: with the counted parts it is within 15% of an update's memory on tiny models.
    """
    config, tokens = model.config, training.max_tokens_per_microbatch
    element = BYTES[training.mixed_precision_param]
    layers = -(-config.num_layers // mesh.pipeline_parallel_degree)
    # The first stage runs ahead by as many micro-batches as there are stages after it.
    in_flight = mesh.pipeline_parallel_degree
    attention = family_of(config.model_type).attention_activations(config)
    feed_forward = _feed_forward_activations(config)
    tensor_degree = mesh.tensor_parallel_degree
    residual = config.dim * element // (tensor_degree if mesh.enable_sequence_parallel else 1)
    # Attention computes in float32 on a CPU.
    layer = 4 * residual + (feed_forward * element + attention * BYTES["float32"]) // tensor_degree
    if mode == "full":
        per_token = layers * residual + layer
    elif mode == "selective":
        per_token = layers * (layer + residual) // 2 + layer
    else:
        per_token = layers * layer
    return tokens * per_token * in_flight


def _feed_forward_activations(config: HFConfig) -> int:
    """Returns how many numbers per token the feed-forward of a layer keeps for the backward pass."""
    experts = config.experts
    if experts is None:
        return 4 * config.hidden_dim
    width = (experts.per_token + experts.num_shared) * experts.hidden_dim
    return 4 * width + 2 * experts.per_token * config.dim


def parameters(config: HFConfig, *, is_value_model: bool, copies_head: bool = False) -> list[int]:
    """Returns the number of parameters of the embedding, of each layer, and of the last norm with the head.

    Args:
        config: the model's.
        is_value_model: whether the head is scalar.
        copies_head: whether a tied head counts: the last stage of a pipeline has a copy.
    """
    vocabulary, dim = config.vocab_size * config.dim, config.dim
    head = dim if is_value_model else 0 if config.tied and not copies_head else vocabulary
    return [vocabulary, *(_layer(config, layer) for layer in range(config.num_layers)), dim + head]


def _layer(config: HFConfig, layer: int) -> int:
    dim, experts = config.dim, config.experts
    size = 2 * dim + family_of(config.model_type).attention_parameters(config)
    if experts is None or layer in experts.dense_layers:
        return size + 3 * dim * config.hidden_dim
    width = experts.hidden_dim * (experts.count + experts.num_shared)
    return size + experts.count * dim + 3 * dim * width


def _shards(mesh: Parallelism, world_size: int) -> int:
    """Returns the number of ranks that FSDP shards a parameter over."""
    others = mesh.data_parallel_replicate_degree * mesh.tensor_parallel_degree * mesh.pipeline_parallel_degree
    return world_size // others


def _stages(model: Model, mesh: Parallelism) -> list[list[int]]:
    """Returns the numbers of parameters of the blocks of each pipeline rank.

    As TorchTitan splits: evenly, embedding and head count as a layer each, the first stages have one more.
    """
    ranks = mesh.pipeline_parallel_degree
    blocks = parameters(model.config, is_value_model=model.is_value_model, copies_head=ranks > 1)
    blocks[-1] += model.config.dim * model.has_critic
    count = ranks * (STAGES_PER_RANK[mesh.pipeline_parallel_schedule] if ranks > 1 else 1)
    stages: list[list[int]] = [[] for _ in range(ranks)]
    start = 0
    for stage in range(count):
        size = len(blocks) // count + (stage < len(blocks) % count)
        stages[stage % ranks] += blocks[start : start + size]
        start += size
    return stages
