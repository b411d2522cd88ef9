"""How much memory a run needs on its fullest rank, predicted from the config.json of its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from titanrl.models.hf_config import HFConfig
from titanrl.models.mesh_checks import STAGES_PER_RANK

if TYPE_CHECKING:
    from titanrl.config.engine_tables import ActivationCheckpoint, Optimizer, Parallelism, Training

__all__ = ["Model", "MemoryEstimate", "estimate_memory", "needs_fsdp", "parameters"]

BYTES = {"float32": 4, "bfloat16": 2}
PREFETCHED = 2
"""Blocks whose gathered weights exist at one time: the one computed and the next."""


class MemoryEstimate(NamedTuple):
    """What one part of a run holds, bytes."""

    name: str
    size: int
    is_on_host: bool = False
    """Whether it lies in CPU memory where the rest is on a GPU."""


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
    """Whether its weights wait in CPU memory."""
    has_critic: bool = False
    """Whether a critic's head is on its body."""


def estimate_memory(
    models: Sequence[Model],
    mesh: Parallelism,
    training: Training,
    checkpoint: ActivationCheckpoint,
    world_size: int,
    passing: Sequence[MemoryEstimate] = (),
) -> list[MemoryEstimate]:
    """Returns what the fullest rank holds, at most; without a sampler's own weights, keys and values.

    Weights, gradients and moments are counted exactly; gathered weights and activations by a rule. An
    offloaded model is gathered while the batch is scored, when there are no activations: the larger counts.

    Args:
        passing: what else is there only while the batch is scored.
    """
    found, passing = [], list(passing)
    for model in models:
        stages = _stages(model, mesh)
        blocks = max(stages, key=lambda units: sum(units))
        cut = mesh.tensor_parallel_degree
        shards = _shards(mesh, world_size)
        size = -(-sum(blocks) // (cut * shards))
        weights, compute = BYTES[model.dtype], BYTES[training.mixed_precision_param]
        found.append(MemoryEstimate(f"{model.name}: weights", size * weights, is_on_host=model.offload))
        whole = shards == 1
        gathered = sum(blocks) if whole else sum(sorted(blocks)[-PREFETCHED - 1 :])
        if needs_fsdp(world_size, model.dtype, training, offload=model.offload):
            need = MemoryEstimate(f"{model.name}: gathered weights", gathered // cut * compute)
            (passing if model.offload else found).append(need)
        if model.optimizer is None:
            continue
        moments = 2 if model.optimizer.implementation == "fused_opt_states_bf16" else weights
        found.append(MemoryEstimate(f"{model.name}: gradients", size * weights))
        found.append(MemoryEstimate(f"{model.name}: moments of {model.optimizer.name}", size * 2 * moments))
    trained = [model for model in models if model.optimizer is not None]
    sizes = [activations(model, mesh, training, checkpoint.mode) for model in trained]
    passing.append(MemoryEstimate("activations", max(sizes, default=0)))
    return [*found, max(passing, key=lambda need: need.size)]


def needs_fsdp(world_size: int, dtype: str, training: Training, *, offload: bool) -> bool:
    """Whether weights in ``dtype`` are to be sharded, or cast or fetched for each pass.

    Where they are not, FSDP2 would hold, and make in each step, a second copy of them all.
    """
    return world_size > 1 or offload or dtype != training.mixed_precision_param


def activations(model: Model, mesh: Parallelism, training: Training, mode: str) -> int:
    """Returns what a forward pass of a full micro-batch keeps for the backward pass, bytes.

    A rule, not a count: with what is counted it comes within 15% of what an update holds on tiny models.
    """
    config, tokens = model.config, training.max_tokens_per_microbatch
    element = BYTES[training.mixed_precision_param]
    layers = -(-config.num_layers // mesh.pipeline_parallel_degree)
    # The first stage runs ahead by as many micro-batches as there are stages after it.
    waiting = mesh.pipeline_parallel_degree
    attention, inner = _kept(config)
    cut = mesh.tensor_parallel_degree
    stream = config.dim * element // (cut if mesh.enable_sequence_parallel else 1)
    # Attention computes in float32 on a CPU.
    whole = 4 * stream + (inner * element + attention * BYTES["float32"]) // cut
    if mode == "full":
        kept = layers * stream + whole
    elif mode == "selective":
        kept = layers * (whole + stream) // 2 + whole
    else:
        kept = layers * whole
    return tokens * kept * waiting


def _kept(config: HFConfig) -> tuple[int, int]:
    """Returns how many numbers attention and feed-forward of a layer keep of a token beside hidden states."""
    heads, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    if config.latent is not None:
        heads = keys = config.num_heads * (config.latent.plain_dim + config.latent.rope_dim)
    attention = (6 if config.family == "qwen3" else 4) * (heads + keys)
    experts = config.experts
    if experts is None:
        return attention, 4 * config.hidden_dim
    width = (experts.per_token + experts.num_shared) * experts.hidden_dim
    return attention, 4 * width + 2 * experts.per_token * config.dim


def parameters(config: HFConfig, *, is_value_model: bool, copies_head: bool = False) -> list[int]:
    """Returns the number of parameters of the embedding, of each layer, and of last norm and head.

    Args:
        copies_head: whether a tied head counts: the last stage of a pipeline has a copy.
    """
    vocabulary, dim = config.vocab_size * config.dim, config.dim
    head = dim if is_value_model else 0 if config.tied and not copies_head else vocabulary
    return [vocabulary, *(_layer(config, layer) for layer in range(config.num_layers)), dim + head]


def _layer(config: HFConfig, layer: int) -> int:
    dim, experts = config.dim, config.experts
    size = 2 * dim + _attention(config)
    if experts is None or layer in experts.dense_layers:
        return size + 3 * dim * config.hidden_dim
    width = experts.hidden_dim * (experts.count + experts.num_shared)
    return size + experts.count * dim + 3 * dim * width


def _attention(config: HFConfig) -> int:
    dim, heads, sizes = config.dim, config.num_heads, config.latent
    if sizes is None:
        norms = 2 * config.head_dim if config.family == "qwen3" else 0
        return 2 * dim * config.head_dim * (heads + config.num_kv_heads) + norms
    rank, queries = sizes.query_rank, heads * (sizes.plain_dim + sizes.rope_dim)
    query = dim * rank + rank + rank * queries if rank else dim * queries
    keys = dim * (sizes.key_value_rank + sizes.rope_dim) + sizes.key_value_rank
    values = sizes.key_value_rank * heads * (sizes.plain_dim + sizes.value_dim)
    return query + keys + values + heads * sizes.value_dim * dim


def _shards(mesh: Parallelism, world_size: int) -> int:
    """Returns over how many ranks a parameter is sharded, besides tensor and pipeline parallelism."""
    others = mesh.data_parallel_replicate_degree * mesh.tensor_parallel_degree * mesh.pipeline_parallel_degree
    return world_size // others


def _stages(model: Model, mesh: Parallelism) -> list[list[int]]:
    """Returns the parameters of the blocks of each pipeline rank, cut as TorchTitan cuts: evenly, embedding
    and head counting as a layer each, the first stages having one more."""
    ranks = mesh.pipeline_parallel_degree
    blocks = parameters(model.config, is_value_model=model.is_value_model, copies_head=ranks > 1)
    blocks[-1] += model.config.dim * model.has_critic
    count = ranks * (STAGES_PER_RANK[mesh.pipeline_parallel_schedule] if ranks > 1 else 1)
    found: list[list[int]] = [[] for _ in range(ranks)]
    start = 0
    for stage in range(count):
        size = len(blocks) // count + (stage < len(blocks) % count)
        found[stage % ranks] += blocks[start : start + size]
        start += size
    return found
