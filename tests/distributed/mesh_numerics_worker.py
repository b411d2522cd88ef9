"""Two ranks compute small cases with hand-computed results and write them to files.

Usage: mesh_numerics_worker.py FOLDER, which holds model/ and receives rank-<r>.pt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from titanrl.config.engine_tables import Parallelism, Training
from titanrl.engine import Engine, EngineConfig, init_distributed, update
from titanrl.ops.logprob import token_statistics


def norm_of(mesh: DeviceMesh, parts: list[tuple[list[float], Any]]) -> float:
    """Return the gradient norm of an update, for gradients given as (this rank's numbers, placement)."""
    parameters = []
    for numbers, placement in parts:
        local = torch.tensor(numbers)
        parameter = torch.nn.Parameter(DTensor.from_local(torch.zeros_like(local), mesh, [placement]))
        parameter.grad = DTensor.from_local(local, mesh, [placement])
        parameters.append(parameter)
    return float(update.clip_grad_norm_(parameters, 1e9, foreach=True))


def head(rank: int) -> dict[str, torch.Tensor]:
    """Return this rank's gradient of ``sum(log softmax(z) * w)``, z [3, 6] with 3 columns per rank."""
    z = torch.arange(18.0).view(3, 6).sin() * 2
    w = torch.arange(18.0).view(3, 6).cos()
    # The logits are the head's weight, each row one vocabulary entry, for unit hidden states.
    weight = z.t()[3 * rank : 3 * rank + 3].clone().requires_grad_()
    hidden = torch.eye(3).requires_grad_()
    ids = torch.arange(6).expand(3, 6)
    statistics = token_statistics(hidden, weight, ids, group=dist.group.WORLD, vocab_start=3 * rank)
    (statistics.logprob * w).sum().backward()
    assert weight.grad is not None
    return {"logits": z, "weights": w, "gradient": weight.grad.t(), "logprob": statistics.logprob.detach()}


def uneven(folder: Path, rank: int) -> list[int]:
    """Return the micro-batch sizes of rows [8, 8] on rank 0 and [2, 2] on rank 1, 8 tokens each."""
    training = Training(seq_len=16, max_tokens_per_microbatch=8, mixed_precision_param="float32")
    engine = Engine(
        EngineConfig(
            model=str(folder / "model"),
            training=training,
            parallelism=Parallelism(data_parallel_shard_degree=2),
        )
    )
    length = 2 if rank else 8
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[:, length - 1] = True
    rows = TensorDict(
        {
            "input_ids": torch.arange(16).view(2, 8) + 4,
            "labels": torch.arange(16).view(2, 8) + 5,
            "loss_mask": mask,
            "group_id": torch.tensor([0, 1]),
        },
        batch_size=[2],
    )
    actual = [each.num_tokens for each in engine.policy.scoring_model.micro_batches(rows)]
    engine.close()
    return actual


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    init_distributed()
    mesh = init_device_mesh("cpu", (2,))
    sharded, replicated = [[3.0], [4.0]][rank], [12.0]
    recorded = {
        "norm": norm_of(mesh, [(sharded, Shard(0)), (replicated, Replicate())]),
        "norm of copies": norm_of(mesh, [([5.0], Replicate())]),
        "head": head(rank),
        "micro-batches": uneven(folder, rank),
    }
    torch.save(recorded, folder / f"rank-{rank}.pt")
    dist.destroy_process_group()
