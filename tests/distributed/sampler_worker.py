"""Samples on every rank of a data-parallel trainer, unevenly, and writes responses and log-prob differences.

Usage: sampler_worker.py FOLDER, which holds case.json (model, sampler) and gets rank-<r>.pt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

import titanrl
from titanrl.config.engine_tables import Parallelism, Training
from titanrl.data.collate import collate_rollouts
from titanrl.engine import Engine, EngineConfig, set_threads
from titanrl.protocols import RolloutRequest, SamplerContext

LENGTH = 64
# The first rank gets all rows but one, so that the ranks decode for different times.
ROWS = [
    RolloutRequest([1, *range(4, 10 + 5 * group)], group, sample) for group in range(3) for sample in range(3)
]


def rows_of(rank: int, degree: int) -> list[RolloutRequest]:
    if degree == 1:
        return ROWS
    return ROWS[:-1] if rank == 0 else ROWS[-1:]


def run(case: dict[str, Any]) -> dict[str, Any]:
    training = Training(seq_len=LENGTH, mixed_precision_param="float32")
    engine = Engine(EngineConfig(model=case["model"], training=training, parallelism=Parallelism()))
    sampler = titanrl.build("sampler", case["sampler"]).start(
        SamplerContext(
            model_path=case["model"],
            eos_ids=(2,),
            max_length=LENGTH,
            seed=0,
            engine=engine,
            dp_rank=engine.dp_rank,
            dp_degree=engine.dp_degree,
        )
    )
    sampler.load(engine.weights(), version=1)
    together = sampler.ranks_per_engine > 1
    rows = ROWS if together else rows_of(engine.dp_rank, engine.dp_degree)
    answers = sampler.sample(rows, step=4, seed=11)
    none = sampler.sample(rows if together or engine.dp_rank == 0 else [], step=4, seed=11)
    batch = collate_rollouts(rows, answers, decode=str, version=1)
    gap = (engine.score(batch)["logprob"] - batch["sampler_logprob"])[batch["loss_mask"]].abs()
    sampler.close()
    engine.close()
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    return {
        "answers": {
            (row.prompt_index, row.sample_index): list(answer.ids)
            for row, answer in zip(rows, answers, strict=True)
        },
        "again": [list(answer.ids) for answer in none],
        "gap": float(gap.mean()),
        "ranks": int(total),
    }


if __name__ == "__main__":
    set_threads(2)
    folder = Path(sys.argv[1])
    result = run(json.loads((folder / "case.json").read_text()))
    torch.save(result, folder / f"rank-{torch.distributed.get_rank()}.pt")
    torch.distributed.destroy_process_group()
