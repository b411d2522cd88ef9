"""Checks whether a model fits a mesh; messages give the nearest valid degree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from titanrl.errors import Problem
from titanrl.models.family import family_of
from titanrl.models.hf_config import HFConfig

if TYPE_CHECKING:
    from titanrl.config.engine_tables import Parallelism

__all__ = ["mesh_problems", "model_problems", "nearest"]

STAGES_PER_RANK = {"1F1B": 1, "Interleaved1F1B": 2}
"""Pipeline schedule -> stages of a rank."""


def mesh_problems(mesh: Parallelism, world_size: int) -> list[Problem]:
    """Returns the reasons why the degrees don't form a mesh of ``world_size`` processes."""
    outer = mesh.data_parallel_replicate_degree * mesh.pipeline_parallel_degree
    fixed, shard = outer * mesh.tensor_parallel_degree, mesh.data_parallel_shard_degree
    if world_size % fixed or shard not in (-1, world_size // fixed):
        if world_size % fixed:
            size = fixed * max(shard, 1)
            remedy = f"start {nearest(world_size, range(size, world_size + size + 1, size))} (--nproc)"
        else:
            remedy = f"set data_parallel_shard_degree = {world_size // fixed}, or start {fixed * shard}"
        return [
            Problem(
                "parallelism",
                f"degrees must multiply to the {world_size} processes, got replicate "
                f"{mesh.data_parallel_replicate_degree} x shard {shard} x tensor "
                f"{mesh.tensor_parallel_degree} x pipeline {mesh.pipeline_parallel_degree}; {remedy}.",
            )
        ]
    experts, ranks = mesh.expert_parallel_degree, world_size // outer
    if ranks % experts:
        text = (
            f"must divide the {ranks} ranks of shard degree x tensor degree, got {experts}; the nearest: "
            f"{nearest(experts, _divisors(ranks))}."
        )
        return [Problem("parallelism", text, "expert_parallel_degree")]
    return []


def model_problems(config: HFConfig, mesh: Parallelism, folder: str, compute_dtype: str) -> list[Problem]:
    """Returns the reasons why the model of ``folder`` cannot be sharded or computed as configured.

    Args:
        config: the model's.
        mesh: the degrees.
        folder: name of the model in messages.
        compute_dtype: [training] mixed_precision_param.
    """
    family, problems = family_of(config.model_type), []
    if compute_dtype not in family.dtypes:
        names = " or ".join(map(repr, family.dtypes))
        text = f"must be {names} for {folder}, a model of family {family.name}, got {compute_dtype!r}."
        problems.append(Problem("training", text, "mixed_precision_param"))
    tensor, pipeline = mesh.tensor_parallel_degree, mesh.pipeline_parallel_degree
    heads = family.shardable_heads(config)
    if heads % tensor:
        text = (
            f"must divide the {config.num_heads} heads and the {config.num_kv_heads} heads of keys and "
            f"values of {folder}, got {tensor}; the nearest: {nearest(tensor, _divisors(heads))}."
        )
        problems.append(Problem("parallelism", text, "tensor_parallel_degree"))
    # Embedding and head count as a layer each: more stages would leave one empty.
    per_rank, max_stages = STAGES_PER_RANK[mesh.pipeline_parallel_schedule], config.num_layers + 2
    if pipeline > 1 and pipeline * per_rank > max_stages:
        text = (
            f"must be at most {max_stages // per_rank}, as schedule {mesh.pipeline_parallel_schedule!r} "
            f"makes {pipeline * per_rank} stages of the {config.num_layers} layers, embedding and head of "
            f"{folder}, got {pipeline}."
        )
        problems.append(Problem("parallelism", text, "pipeline_parallel_degree"))
    return problems + _expert_problems(config, mesh, folder)


def _expert_problems(config: HFConfig, mesh: Parallelism, folder: str) -> list[Problem]:
    degree, tensor, experts = mesh.expert_parallel_degree, mesh.tensor_parallel_degree, config.experts
    if experts is None:
        text = f"must be 1 for {folder}, which has no experts, got {degree}."
        return [Problem("parallelism", text, "expert_parallel_degree")] if degree > 1 else []
    problems = []
    if experts.count % degree:
        text = (
            f"must divide the {experts.count} experts of {folder}, got {degree}; the nearest: "
            f"{nearest(degree, _divisors(experts.count))}."
        )
        problems.append(Problem("parallelism", text, "expert_parallel_degree"))
    if degree % tensor:
        # Otherwise torchtitan 0.3.0 loses part of the gradient: with TP 2 half of some tensors.
        text = f"must be a multiple of tensor_parallel_degree ({tensor}) for experts, got {degree}."
        problems.append(Problem("parallelism", text, "expert_parallel_degree"))
    if degree > 1 and tensor > 1 and not mesh.enable_sequence_parallel:
        text = "must be true where experts are sharded over tensor-parallel ranks, got false."
        problems.append(Problem("parallelism", text, "enable_sequence_parallel"))
    replicate, shard = mesh.data_parallel_replicate_degree, mesh.data_parallel_shard_degree
    if degree == 1 and replicate > 1 and shard == 1:
        # torchtitan 0.3.0 distributes grouped experts over the axes of FSDP alone, and finds none.
        text = f"must be 2 or more where the experts of {folder} are replicated, got 1; shard instead."
        problems.append(Problem("parallelism", text, "data_parallel_shard_degree"))
    if degree > 1 and mesh.data_parallel_replicate_degree > 1:
        text = (
            "must be 1 where experts are sharded over ranks, got "
            f"{mesh.data_parallel_replicate_degree}; shard instead."
        )
        problems.append(Problem("parallelism", text, "data_parallel_replicate_degree"))
    return problems


def nearest(number: int, possible: Iterable[int]) -> str:
    """Returns the nearest of ``possible`` below and above ``number`` as text: "2", "2 or 4"."""
    candidates = list(possible)
    below = [each for each in candidates if each <= number]
    above = [each for each in candidates if each >= number]
    nearest_numbers = dict.fromkeys([*([max(below)] if below else []), *([min(above)] if above else [])])
    return " or ".join(map(str, nearest_numbers))


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
