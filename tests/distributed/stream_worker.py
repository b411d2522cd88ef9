"""Gathers tensors and streams models on four ranks, and writes values and peak memory to files.

Usage: stream_worker.py FOLDER: holds cases.json ({name: {model, parallelism}}), gets rank-<r>.pt.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from titanrl.config.engine_tables import Optimizer, Parallelism, Training
from titanrl.engine import Engine, EngineConfig
from titanrl.engine import mesh as engine_mesh
from titanrl.engine.host_memory import M_MMAP_THRESHOLD, resident_bytes
from titanrl.engine.weights.gather import gather

ROWS, COLUMNS = 2048, 2304
"""18 MiB: large compared with the error of the allocator and of the kernel's count of pages."""
AROUND = range(1, 14)
"""Numbers of rows that four ranks cannot shard evenly, and fewer than there are ranks."""


def tensors(rows: int, columns: int) -> dict[str, tuple[torch.Tensor, DTensor]]:
    """Returns (expected value, sharded tensor) by kind of sharding."""
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tensor"))
    whole = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
    actual = {
        f"{name} of {mesh.ndim}": (whole, distribute_tensor(whole, mesh, placements))
        for name, mesh, placements in (
            ("rows", line, [Shard(0)]),
            ("columns", line, [Shard(1)]),
            ("copies", line, [Replicate()]),
            ("rows and columns", square, [Shard(0), Shard(1)]),
            ("rows twice", square, [Shard(0), Shard(0)]),
            ("copies of rows", square, [Replicate(), Shard(0)]),
            ("rows, copies", square, [Shard(0), Replicate()]),
        )
    }
    for dim, name in enumerate(("rows", "columns")):
        actual[f"FSDP of {name}"] = whole, under_fsdp(whole, square, dim)
    flat = whole.flatten()
    actual["vector"] = flat, distribute_tensor(flat, line, [Shard(0)])
    cube = whole.view(rows, columns // 2, 2)
    actual["cube"] = cube, distribute_tensor(cube, square, [Shard(0), Shard(1)])
    return actual


def under_fsdp(whole: torch.Tensor, mesh: DeviceMesh, dim: int) -> DTensor:
    """Returns a tensor sharded by tensor parallelism on ``dim`` and then by FSDP."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(distribute_tensor(whole, mesh["tensor"], [Shard(dim)]))
    fully_shard(module, mesh=mesh["fsdp"])
    parameter = module.weight
    assert isinstance(parameter, DTensor)
    return parameter


def extra_bytes(call: Callable[[], Any]) -> int:
    """Returns the peak memory of a call beyond the memory before it, of all threads."""
    call()  # Memory that the first call loads and keeps is not counted.
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # Resets the peak.
    before = resident_bytes("VmRSS")
    call()
    return resident_bytes("VmHWM") - before


def gathered() -> dict[str, Any]:
    large = {
        name: {
            "equal": torch.equal(gather(value), whole),
            "extra": extra_bytes(lambda value=value: gather(value)) / whole.nbytes,
            "rounded": torch.equal(gather(value, torch.bfloat16).bfloat16(), whole.bfloat16()),
        }
        for name, (whole, value) in tensors(ROWS, COLUMNS).items()
    }
    wrong = [
        (rows, columns, name)
        for rows in AROUND
        for columns in (2, 6)
        for name, (whole, value) in tensors(rows, columns).items()
        if not torch.equal(gather(value), whole)
    ]
    return {"large": large, "wrong": wrong}


def streamed(case: dict[str, Any]) -> dict[str, Any]:
    engine = Engine(
        EngineConfig(
            model=case["model"],
            steps=1,
            training=Training(seq_len=32, max_tokens_per_microbatch=32, mixed_precision_param="float32"),
            optimizer=Optimizer(implementation="foreach"),
            parallelism=Parallelism(**case["parallelism"]),
        )
    )

    def consume() -> None:
        for _, value in engine.weights():
            assert value.shape

    sizes = [value.nbytes for _, value in engine.weights()]
    with patch.object(dist, "all_gather_object", wraps=dist.all_gather_object) as exchanged:
        rounded = dict(engine.weights(torch.bfloat16))
    biases = {name: value for name, value in rounded.items() if name.endswith("correction_bias")}
    with engine.inference() as parts:
        full = {name: value for name, value in parts[0].named_buffers() if "expert_bias" in name}
    engine.export(case["export"], dtype=torch.bfloat16)
    actual = {
        "exchanges": exchanged.call_count,
        "biases": biases,
        "full": full,
        "dtypes": {value.dtype for name, value in rounded.items() if name not in biases},
        "largest": max(sizes),
        "all": sum(sizes),
        "extra": extra_bytes(consume) if case["measured"] else None,
    }
    engine.close()
    return actual


if __name__ == "__main__":
    torch.set_num_threads(1)
    # An engine keeps freed memory for reuse; here it is returned, so that it does not count.
    engine_mesh.tune_malloc = lambda: None
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    recorded = {name: streamed(case) for name, case in cases.items()}
    recorded["gathered"] = gathered()
    torch.save(recorded, folder / f"rank-{int(os.environ['RANK'])}.pt")
    dist.destroy_process_group()
