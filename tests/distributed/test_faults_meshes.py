"""A fault that users of other frameworks met: gradients off by the degree of some other axis of the mesh."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.distributed import worker
from tests.distributed.test_engine_meshes import ATOL, launch
from titanrl.models import tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
FOUR = {
    "4 x 1": {"data_parallel_shard_degree": 4},
    "2 x 2 x 1": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2},
    "2 x 2": {"data_parallel_shard_degree": 2, "tensor_parallel_degree": 2},
    "1 x 4": {"tensor_parallel_degree": 4},
}
"""Data-parallel degrees (replicas, shards) times the tensor-parallel one."""


@pytest.mark.timeout(600)
def test_k3_14_every_way_to_use_four_ranks_gives_one_gradient(tmp_path: Path) -> None:
    # As many heads for keys as ranks, so that all can be split.
    model = tiny.create(tmp_path / "model", kv_heads=4, tied=False, scale=0.2)
    case = {"model": str(model), "steps": 1}
    one = worker.run(case)
    cases = {name: case | {"parallelism": degrees} for name, degrees in FOUR.items()}
    results = launch(tmp_path / "four", 4, cases)
    for name in FOUR:
        for rank in results[4, name]:
            assert rank["losses"] == pytest.approx(one["losses"], abs=ATOL), name
            assert rank["counts"] == one["counts"], name
            for key, wanted in one["gradients"][0].items():
                torch.testing.assert_close(
                    rank["gradients"][0][key],
                    wanted,
                    atol=ATOL,
                    rtol=1e-4,
                    msg=lambda m, at=(name, key): f"{at}: {m}",
                )
