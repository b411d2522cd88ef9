"""Tiny models and batches for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor

import titanrl
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import Optimizer, Training
from titanrl.engine import Engine, EngineConfig
from titanrl.engine.settings import FrozenModel
from titanrl.models import tiny

LENGTH = 40
LOSSES = {"kl": "k3"}


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of the full tensor, sharded by FSDP or not."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.create(tmp_path_factory.mktemp("model") / "tiny", scale=0.2)


@pytest.fixture(scope="session")
def make_engine(model_folder: Path) -> Callable[..., Engine]:
    """Returns a function that builds an engine of the tiny model in float32 with changed settings."""

    def make(**changes: Any) -> Engine:
        training = {
            "seq_len": LENGTH + 8,
            "max_tokens_per_microbatch": 120,
            "mixed_precision_param": "float32",
        }
        training |= changes.pop("training", {})
        arguments = {key: changes.pop(key) for key in ("state", "checkpoints") if key in changes}
        if changes.pop("with_reference", False):
            changes["frozen"] = {"reference": FrozenModel(str(model_folder))}
        config = EngineConfig(
            **(
                {
                    "model": str(model_folder),
                    "steps": 20,
                    "optimizer": Optimizer(lr=1e-2),
                    "training": Training(**training),
                }
                | changes
            )
        )
        return Engine(config, **arguments)

    return make


@pytest.fixture
def objective() -> Objective:
    return Objective(loss=titanrl.build("loss", {"name": "ppo_clip"}), kl=titanrl.build("kl", {"name": "k3"}))


def make_batch(seed: int = 0, length: int = LENGTH) -> TensorDict:
    """Returns 9 rows in 3 groups of 4, 3 and 2 that share their prompts; one row has no loss token."""
    generator = torch.Generator().manual_seed(seed)
    group_id = torch.tensor([2, 2, 2, 2, 0, 0, 0, 5, 5])
    rows = len(group_id)
    raw = torch.randint(4, 90, (rows, LENGTH + 1), generator=generator)
    mask = torch.zeros(rows, LENGTH, dtype=torch.bool)
    for group, prompt in ((2, 11), (0, 3), (5, 6)):
        members = (group_id == group).nonzero().squeeze(1).tolist()
        for row in members:
            raw[row, : prompt + 1] = raw[members[0], : prompt + 1]
            mask[row, prompt : prompt + int(torch.randint(1, 26, (1,), generator=generator))] = True
    mask[5] = False
    batch = TensorDict(
        {
            "input_ids": raw[:, :-1],
            "labels": raw[:, 1:],
            "loss_mask": mask,
            "group_id": group_id,
            "advantage": torch.randn(rows, LENGTH, generator=generator) * mask,
            "loss_weight": mask / mask.sum(1, keepdim=True).clamp_min(1) / rows,
        },
        batch_size=[rows],
    )
    return pad_columns(batch, length)


def pad_columns(batch: TensorDict, length: int) -> TensorDict:
    """Returns the batch with every [N, L] key padded by zeros to ``length`` columns."""

    def pad(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, length - x.shape[1])) if x.ndim == 2 else x

    return batch.apply(pad)


def with_old(batch: TensorDict, engine: Engine) -> TensorDict:
    """Returns the batch with old and reference log-probs of the engine's current policy."""
    logprob = engine.score(batch)["logprob"]
    return batch.copy().update({"old_logprob": logprob, "ref_logprob": logprob})
