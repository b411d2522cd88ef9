"""Process group, device, threads, and TorchTitan's mesh."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

from titanrl.models.accelerator import device_type  # isort: skip  # before torchtitan

import torch
import torch.distributed as dist
from torchtitan.config import ParallelismConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import set_spmd_backend

from titanrl.config.engine_tables import Parallelism
from titanrl.engine.host_memory import tune_malloc
from titanrl.errors import ConfigError
from titanrl.models.mesh_checks import mesh_problems

__all__ = ["Mesh", "build_mesh", "set_threads", "init_distributed"]

TIMEOUT = timedelta(minutes=30)
"""Long enough for one rank to sample, score and save while the other ranks wait in a collective."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The device mesh and this rank's coordinates on it."""

    dims: ParallelDims
    parallelism: ParallelismConfig
    """TorchTitan's own table, which its parallelize functions read."""
    device: torch.device
    rank: int
    world_size: int
    dp_rank: int
    dp_degree: int
    """Number of ranks that hold different rows."""
    dp_group: dist.ProcessGroup | None
    """Group in which rows are gathered and metrics summed; None where dp_degree is 1."""

    @property
    def degrees(self) -> dict[str, int]:
        """The number of processes, and the parallelism degrees by their keys in [parallelism]."""
        return {
            "processes": self.world_size,
            "data_parallel_replicate_degree": int(self.dims.dp_replicate),
            "data_parallel_shard_degree": int(self.dims.dp_shard),
            "tensor_parallel_degree": int(self.dims.tp),
            "pipeline_parallel_degree": int(self.dims.pp),
            "expert_parallel_degree": int(self.dims.ep),
        }

    @property
    def single_dp_rank(self) -> bool:
        """Whether there is no data parallelism, so that FSDP shards and replicates nothing."""
        return int(self.dims.dp_replicate * self.dims.dp_shard) == 1

    @property
    def row_groups(self) -> list[dist.ProcessGroup]:
        """One group per mesh axis of the ranks with the same rows."""
        meshes = [self.dims.get_optional_mesh(axis) for axis in ("pp", "tp")]
        return [mesh.get_group() for mesh in meshes if mesh is not None]

    @property
    def pp_group(self) -> dist.ProcessGroup | None:
        mesh = self.dims.get_optional_mesh("pp")
        return None if mesh is None else mesh.get_group()


def build_mesh(table: Parallelism) -> Mesh:
    """Returns the mesh of the processes that torchrun started, or of a single process.

    Args:
        table: the parallelism degrees.

    Raises:
        ConfigError: the degrees don't multiply to the number of processes.
    """
    device = init_distributed()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if problems := mesh_problems(table, world_size):
        raise ConfigError(problems)
    parallelism = ParallelismConfig(
        data_parallel_replicate_degree=table.data_parallel_replicate_degree,
        data_parallel_shard_degree=table.data_parallel_shard_degree,
        fsdp_reshard_after_forward=table.fsdp_reshard_after_forward,
        tensor_parallel_degree=table.tensor_parallel_degree,
        enable_sequence_parallel=table.enable_sequence_parallel,
        pipeline_parallel_degree=table.pipeline_parallel_degree,
        pipeline_parallel_schedule=table.pipeline_parallel_schedule,
        expert_parallel_degree=table.expert_parallel_degree,
        spmd_backend=table.spmd_backend,
    )
    dims = ParallelDims.from_config(parallelism, world_size)
    dims.build_mesh()
    set_spmd_backend(table.spmd_backend)
    batch = dims.get_optional_mesh("batch")
    return Mesh(
        dims=dims,
        parallelism=parallelism,
        device=device,
        rank=rank,
        world_size=world_size,
        dp_rank=0 if batch is None else batch.get_local_rank(),
        dp_degree=1 if batch is None else batch.size(),
        dp_group=None if batch is None else batch.get_group(),
    )


def init_distributed() -> torch.device:
    """Initializes the process group of torchrun, or of a single process; returns this rank's device."""
    device = _device()
    if device.type == "cpu":
        tune_malloc()
    if not dist.is_initialized():
        backend = "cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo"
        if "WORLD_SIZE" in os.environ:
            dist.init_process_group(backend, timeout=TIMEOUT)
        else:  # no port is opened
            dist.init_process_group(
                backend, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1, timeout=TIMEOUT
            )
    return device


def set_threads(local_world_size: int | None = None) -> int:
    """Divides this machine's cores among its ranks and returns the number of threads per rank.

    Call it after torchrun and vLLM: torchrun sets OMP_NUM_THREADS=1, and vLLM changes the number of threads
    of its process.

    Args:
        local_world_size: ranks on this machine; None: torchrun's number, or 1.
    """
    if local_world_size is None:
        local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = max(1, len(os.sched_getaffinity(0)) // local_world_size)
    torch.set_num_threads(threads)
    return threads


def _device() -> torch.device:
    if device_type() == "cpu":
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
