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
    "2 stages that take turns": {
        "data_parallel_shard_degree": 2,
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_schedule": "Interleaved1F1B",
    },
}
"""Data-parallel degrees (replicas, shards) times the tensor-parallel one, or the pipeline's."""


@pytest.mark.timeout(600)
def test_k3_14_every_way_to_use_four_ranks_gives_one_gradient(tmp_path: Path) -> None:
    # As many heads for keys as ranks, so that all can be split, and a layer for each of four stages.
    model = tiny.create(tmp_path / "model", kv_heads=4, layers=4, tied=False, scale=0.2)
    case = {"model": str(model), "steps": 1}
    one = worker.run(case)
    cases = {name: case | {"parallelism": degrees} for name, degrees in FOUR.items()}
    results = launch(tmp_path / "four", 4, cases)
    for name in FOUR:
        ranks = results[4, name]
        for rank in ranks:
            assert rank["losses"] == pytest.approx(one["losses"], abs=ATOL), name
            assert rank["counts"] == one["counts"], name
        # A rank with several stages has an optimizer, and so a dictionary, for each.
        found = {key: value for rank in ranks for part in rank["gradients"] for key, value in part.items()}
        assert found.keys() == one["gradients"][0].keys()
        for key, wanted in one["gradients"][0].items():
            torch.testing.assert_close(
                found[key], wanted, atol=ATOL, rtol=1e-4, msg=lambda m, at=(name, key): f"{at}: {m}"
            )
