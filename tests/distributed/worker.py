"""Trains tiny models for some steps on whatever meshes torchrun gives, and leaves what it saw in files.

Usage: worker.py FOLDER: holds cases.json ({name: {model, parallelism, steps, ...}}), gets rank-<r>.pt.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor

import titanrl
from titanrl.config.engine_tables import Optimizer, Parallelism, Training
from titanrl.engine import Engine, EngineConfig, set_threads
from titanrl.engine.settings import CriticModel, FrozenModel
from titanrl.engine.trainee import Trainee
from titanrl.objective import Objective

LENGTH = 40


def global_batch(seed: int) -> TensorDict:
    """Returns 11 rows in 4 groups: uneven lengths, shared prompts, one row without a trained token."""
    generator = torch.Generator().manual_seed(seed)
    group_id = torch.tensor([7, 7, 7, 3, 3, 3, 3, 5, 5, 1, 1])
    rows = len(group_id)
    raw = torch.randint(4, 90, (rows, LENGTH + 1), generator=generator)
    mask = torch.zeros(rows, LENGTH, dtype=torch.bool)
    for group, prompt in ((7, 9), (3, 5), (5, 12), (1, 2)):
        members = (group_id == group).nonzero().squeeze(1).tolist()
        for row in members:
            raw[row, : prompt + 1] = raw[members[0], : prompt + 1]
            mask[row, prompt : prompt + int(torch.randint(1, 26, (1,), generator=generator))] = True
    mask[4] = False
    numbers = torch.randn(2, rows, LENGTH, generator=generator)
    weight = mask.float() / mask.sum(1, keepdim=True).clamp_min(1) / rows
    return TensorDict(
        {
            "input_ids": raw[:, :-1],
            "labels": raw[:, 1:],
            "loss_mask": mask,
            "group_id": group_id,
            "advantage": numbers[0] * mask,
            "old_logprob": (-4.5 + 0.3 * numbers[1]) * mask,
            "value": numbers[1] * mask,
            "returns": numbers[0] * mask,
            "loss_weight": weight * mask,
        },
        batch_size=[rows],
    )


def share(batch: TensorDict, rank: int, degree: int, *, starve: bool) -> TensorDict:
    """Returns every ``degree``-th group; with ``starve`` only the first rank has a trained token."""
    _, number = torch.unique_consecutive(batch["group_id"], return_inverse=True)
    mine = batch[number % degree == rank]
    if starve and rank:
        mine["loss_mask"] = torch.zeros_like(mine["loss_mask"])
    return mine


def starved(batch: TensorDict, degree: int) -> TensorDict:
    """Returns what all ranks' shares hold together when all but the first are starved."""
    _, number = torch.unique_consecutive(batch["group_id"], return_inverse=True)
    batch["loss_mask"] = batch["loss_mask"] & (number % degree == 0)[:, None]
    return batch


def watch_gradients(trainee: Trainee, seen: list[dict[str, torch.Tensor]]) -> None:
    """Keeps the full gradients of each step, as the optimizer gets them."""

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        found = {}
        for group in optimizer.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                gradient = parameter.grad
                full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
                found[name] = full.clone()
        seen.append(found)

    for optimizer in trainee.optimizers.optimizers:
        optimizer.register_step_pre_hook(keep)


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Returns the losses, scores, full gradients of every step and the final weights by their HF names."""
    optimizer = Optimizer(lr=1e-2, implementation="foreach")
    engine = Engine(
        EngineConfig(
            model=case["model"],
            critic=CriticModel(path=case["critic"], optimizer=optimizer) if "critic" in case else None,
            frozen={"teacher": FrozenModel(case["teacher"], top_k=7)} if "teacher" in case else {},
            temperature=case.get("temperature", 1.0),
            steps=10,
            training=Training(
                seq_len=LENGTH + 1,
                max_tokens_per_microbatch=100,
                max_norm=1e9,
                mixed_precision_param=case.get("precision", "float32"),
            ),
            optimizer=optimizer,
            parallelism=Parallelism(**case.get("parallelism", {})),
        )
    )
    if "teacher" in case:
        objective = Objective(loss=titanrl.build("loss", {"name": "topk_distill", "direction": "jsd"}))
    else:
        clipped, kl = titanrl.build("loss", {"name": "ppo_clip"}), titanrl.build("kl", {"name": "k3"})
        objective = Objective(loss=clipped, kl=kl)
    regression = Objective(loss=titanrl.build("loss", {"name": "value"}))
    gradients: list[dict[str, torch.Tensor]] = []
    of_critic: list[dict[str, torch.Tensor]] = []
    watch_gradients(engine.policy, gradients)
    if engine.critic is not None:
        watch_gradients(engine.critic, of_critic)
    losses, scores, counts = [], [], []
    shares = case.get("shares", engine.dp_degree)
    for step in range(case.get("steps", 3)):
        batch = global_batch(step)
        starve = step == case.get("starve", -1)
        if starve:
            batch = starved(batch, shares)
        rows = share(batch, engine.dp_rank, engine.dp_degree, starve=starve)
        rows["ref_logprob"] = rows["old_logprob"]
        scores.append(engine.score(rows, ("logprob", "entropy")) | {"group_id": rows["group_id"]})
        if "teacher" in case:
            found = engine.frozen["teacher"].score(rows, ("likeliest_ids", "likeliest_logprob"))
            rows["candidate_ids"], rows["candidate_logprob"] = found.values()
            scores[-1] |= found
        if engine.critic is not None:
            scores[-1] |= engine.critic.score(rows, ("value",))
        metrics = engine.update(rows, objective, (0.05, 0.0))
        losses.append(metrics["loss/total"][0])
        counts.append(metrics["loss/entropy"][1])
        if engine.critic is not None:
            losses.append(engine.critic.update(rows, regression, (0.0, 0.0))["loss/total"][0])
            gradients[-1] |= {f"critic.{name}": value for name, value in of_critic[-1].items()}
    weights = dict(engine.weights())
    engine.close()
    return {"losses": losses, "scores": scores, "gradients": gradients, "counts": counts, "weights": weights}


if __name__ == "__main__":
    set_threads(2)
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    torch.save(
        {name: run(case) for name, case in cases.items()}, folder / f"rank-{int(os.environ['RANK'])}.pt"
    )
    torch.distributed.destroy_process_group()
