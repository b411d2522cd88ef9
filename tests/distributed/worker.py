"""Trains tiny models for some steps on each case's mesh and writes the results to files.

Usage: worker.py FOLDER: holds cases.json ({name: {model, parallelism, steps, ...}}), gets rank-<r>.pt.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import titanrl.models.accelerator  # isort: skip  # before torchtitan

import torch
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor
from torchtitan.distributed import fsdp

import titanrl
from tests.distributed.batches import LENGTH, answers, deal, pairs, starved
from titanrl.algorithm.metrics import Sums
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import Optimizer, Parallelism, Training
from titanrl.engine import Engine, EngineConfig, pipeline, update
from titanrl.engine.learner import Learner
from titanrl.engine.settings import CriticModel, FrozenModel

# An epsilon of 1 keeps Adam smooth: otherwise the rounding of a gradient near 0 would be a whole step.
OPTIMIZER = Optimizer(lr=0.1, eps=1.0, implementation="foreach")
LOSSES: dict[str, dict[str, Any]] = {
    "ppo_clip": {"name": "ppo_clip"},
    # So wide that some rows are not clipped.
    "gspo": {"name": "gspo", "clip_low": 0.5, "clip_high": 0.5},
    "dpo": {"name": "dpo"},
    "sft": {"name": "sft"},
    "topk_distill": {"name": "topk_distill", "direction": "jsd"},
    "value": {"name": "value"},
}
STARVED = " starved"
"""Suffix of the name of a step in which some ranks have no loss token."""
POLICY_SCORES = ("logprob", "entropy", "sum_pi_squared")
TEACHER_SCORES = ("logprob", "topk_ids", "topk_logprob")
BETA, ETA = 0.05, 0.01


class Gradients:
    """Full gradients of each update before and after clipping."""

    def __init__(self, learners: list[Learner]) -> None:
        self.before: dict[str, torch.Tensor] = {}
        self.after: dict[str, torch.Tensor] = {}
        self._names = {
            parameter: name
            for learner in learners
            for part in learner.scoring_model.model.parts
            for name, parameter in part.named_parameters()
        }
        self._clip, update.clip_grad_norm_ = update.clip_grad_norm_, self

    def __call__(self, parameters: list[torch.nn.Parameter], *arguments: Any, **options: Any) -> torch.Tensor:
        self.before = self._full(parameters)
        norm: torch.Tensor = self._clip(parameters, *arguments, **options)
        self.after = self._full(parameters)
        return norm

    def _full(self, parameters: list[torch.nn.Parameter]) -> dict[str, torch.Tensor]:
        gradients = {self._names[parameter]: parameter.grad for parameter in parameters}
        return {name: whole(gradient) for name, gradient in gradients.items()}

    def close(self) -> None:
        update.clip_grad_norm_ = self._clip


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of the full tensor."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def make_engine(case: dict[str, Any]) -> Engine:
    return Engine(
        EngineConfig(
            model=case["model"],
            critic=CriticModel(path=case["critic"], optimizer=OPTIMIZER) if "critic" in case else None,
            frozen={
                "reference": FrozenModel(case["model"]),
                "teacher": FrozenModel(case["teacher"], top_k=7),
            }
            if "teacher" in case
            else {},
            head_dtype=case.get("head_dtype"),
            steps=10,
            training=Training(
                seq_len=LENGTH + 1,
                max_tokens_per_microbatch=30,
                max_norm=case["max_norm"],
                mixed_precision_param=case.get("precision", "float32"),
            ),
            optimizer=OPTIMIZER,
            parallelism=Parallelism(**case.get("parallelism", {})),
        )
    )


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Returns {step: {metrics, gradients, clipped}}, the scores before each step and the final weights.

    Also the number of loss tokens of each of the steps' micro-batches.
    """
    engine = make_engine(case)
    learners = {"": engine.policy} | ({} if engine.critic is None else {"value": engine.critic})
    gradients = Gradients(list(learners.values()))
    steps, scores, trained = {}, {}, {}
    is_shared = "critic" in case and engine.critic is None
    if is_shared and engine.policy.scoring_model.model.is_last:
        # With weights of zero the backbone would get no gradient from it.
        engine.policy.scoring_model.model.head.get_parameter("value.weight").data.fill_(0.3)
    for number, step in enumerate(case["losses"]):
        name = step.removesuffix(STARVED)
        batch = (pairs if name == "dpo" else answers)(number)
        rows = deal(starved(batch) if name != step else batch, engine.dp_rank, engine.dp_degree)
        parts = engine.policy.scoring_model.micro_batches(rows)
        trained[step] = [int(part.batch["loss_mask"].sum()) for part in parts]
        recorded = engine.score(rows, (*POLICY_SCORES, "value") if is_shared else POLICY_SCORES)
        if "teacher" in case:
            actual = engine.frozen["teacher"].score(rows, TEACHER_SCORES)
            recorded |= {f"teacher/{key}": value for key, value in actual.items()}
            if (
                number < 2
            ):  # Before the first step it shares the policy's weights, then it is a separate model.
                assert engine.is_policy("reference") == (number == 0)
                recorded["reference/logprob"] = engine.frozen["reference"].score(rows)["logprob"]
            if number == 0:
                offloaded = engine._scoring_model(
                    case["teacher"], frozen_dtype="float32", top_k=7, offload=True
                )
                found_there = offloaded.score(rows, TEACHER_SCORES)
                assert all(torch.equal(found_there[key], value) for key, value in actual.items())
            if name == "topk_distill":
                rows["candidate_ids"] = actual["topk_ids"]
                rows["candidate_logprob"] = actual["topk_logprob"]
        if engine.critic is not None:
            recorded |= engine.critic.score(rows, ("value",))
        scores[step] = recorded | {"group_id": rows["group_id"]}
        objectives = {"": policy_objective(name)}
        if is_shared:
            value = titanrl.build("loss", LOSSES["value"])
            objectives[""] = replace(objectives[""], value=value, value_coefficient=0.5)
        if engine.critic is not None and name != "dpo":
            objectives["value"] = Objective(loss=titanrl.build("loss", LOSSES["value"]))
        for kind, objective in objectives.items():
            metrics: Sums = learners[kind].update(rows, objective, (BETA, ETA))
            steps[f"{kind} beside {step}" if kind else step] = {
                "metrics": metrics,
                "gradients": gradients.before,
                "clipped": gradients.after,
            }
    weights = dict(engine.weights())
    ends = {
        name: whole(parameter)
        for part in engine.modules
        for name, parameter in part.named_parameters()
        if name in ("tok_embeddings.weight", "lm_head.weight")
    }
    if "export" in case:
        engine.export(case["export"])
    gradients.close()
    engine.close()
    return {"steps": steps, "scores": scores, "trained": trained, "weights": weights, "ends": ends}


def policy_objective(name: str) -> Objective:
    loss = titanrl.build("loss", LOSSES[name])
    if name != "ppo_clip":
        return Objective(loss=loss)
    return Objective(loss=loss, kl=titanrl.build("kl", {"name": "k3"}), entropy=True)


if __name__ == "__main__":
    # There are at least as many ranks as cores: one thread each.
    torch.set_num_threads(1)
    # Packed sequences then differ in length between ranks and steps, as those of real responses do.
    pipeline.ROUND = 8
    # TorchTitan pins offloaded weights, which needs a GPU.
    fsdp.CPUOffloadPolicy = partial(CPUOffloadPolicy, pin_memory=False)
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    recorded = {name: run(case) for name, case in cases.items()}
    torch.save(recorded, folder / f"rank-{int(os.environ['RANK'])}.pt")
    torch.distributed.destroy_process_group()
