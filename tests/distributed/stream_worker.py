"""Gathers tensors and streams models on four ranks, and leaves the values and how much memory it took.

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
"""18 MiB: what an allocator or a kernel's count of pages errs by is small beside it."""
AROUND = range(1, 14)
"""Numbers of rows that four ranks cannot share equally, and fewer than there are ranks."""


def tensors(rows: int, columns: int) -> dict[str, tuple[torch.Tensor, DTensor]]:
    """Returns (what it must be, the tensor in shards) by how it is split."""
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tensor"))
    whole = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
    found = {
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
        found[f"FSDP of {name}"] = whole, under_fsdp(whole, square, dim)
    flat = whole.flatten()
    found["vector"] = flat, distribute_tensor(flat, line, [Shard(0)])
    cube = whole.view(rows, columns // 2, 2)
    found["cube"] = cube, distribute_tensor(cube, square, [Shard(0), Shard(1)])
    return found


def under_fsdp(whole: torch.Tensor, mesh: DeviceMesh, dim: int) -> DTensor:
    """Returns what FSDP makes of a tensor that tensor parallelism has split on ``dim``."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(distribute_tensor(whole, mesh["tensor"], [Shard(dim)]))
    fully_shard(module, mesh=mesh["fsdp"])
    parameter = module.weight
    assert isinstance(parameter, DTensor)
    return parameter


def extra_bytes(call: Callable[[], Any]) -> int:
    """Returns the most memory beyond what was held before, of all threads, torch's and gloo's."""
    call()  # What is loaded and kept by a first call is not counted.
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # The peak is from here.
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
    found = {
        "exchanges": exchanged.call_count,
        "biases": biases,
        "full": full,
        "dtypes": {value.dtype for name, value in rounded.items() if name not in biases},
        "largest": max(sizes),
        "all": sum(sizes),
        "extra": extra_bytes(consume) if case["measured"] else None,
    }
    engine.close()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    # An engine has freed memory kept for the next use; here it goes back and counts no more.
    engine_mesh.keep_memory = lambda: None
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    seen = {name: streamed(case) for name, case in cases.items()}
    seen["gathered"] = gathered()
    torch.save(seen, folder / f"rank-{int(os.environ['RANK'])}.pt")
    dist.destroy_process_group()
