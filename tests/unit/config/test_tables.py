"""The tables' keys, types, defaults and documentation: against TorchTitan's own and against a snapshot."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from titanrl.algorithm.reward_scaling import RewardScaling
from titanrl.algorithm.table import Algorithm, KLTerm
from titanrl.config import Experiment, engine_tables, tables
from titanrl.config.alerts import Alerts
from titanrl.config.rft import RFT
from titanrl.registry import component_class, kinds, names
from titanrl.registry.decode import fields_of, is_optional, unwrap_optional
from titanrl.registry.docs import default_of, key_docs, type_name

SNAPSHOT = Path(__file__).with_name("defaults.json")

ENGINE_TABLES = [getattr(engine_tables, name) for name in engine_tables.__all__]
OWN_TABLES = [getattr(tables, name) for name in tables.__all__]
TABLES = [Experiment, Algorithm, KLTerm, RewardScaling, Alerts, RFT, *OWN_TABLES, *ENGINE_TABLES]


def torchtitan_classes() -> dict[str, list[type]]:
    from torchtitan.components.checkpointer.dcp import CheckpointManager
    from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

    return {
        "Training": [TrainingConfig],
        "Optimizer": [OptimizersContainer.Config],
        "LRScheduler": [LRSchedulersContainer.Config],
        "Parallelism": [ParallelismConfig],
        "Checkpoint": [CheckpointManager.Config],
        "Compile": [CompileConfig],
        "ActivationCheckpoint": [FullAC.Config, SelectiveAC.Config],
    }


DIFFERENCES = {
    (
        "Training",
        "max_tokens_per_microbatch",
    ): "ours; local_batch_size would count sequences of a fixed length",
    ("Training", "max_norm"): "float; TorchTitan says float | int, which is the same in TOML",
    ("Optimizer", "name"): "a key of TorchTitan's parameter group, of which there is one",
    ("Optimizer", "lr"): "as name; 1e-6 is the default of reinforcement learning, 8e-4 that of pretraining",
    ("Optimizer", "beta1"): "as name; half of betas",
    ("Optimizer", "beta2"): "as name; half of betas",
    ("Optimizer", "eps"): "as name",
    ("Optimizer", "weight_decay"): "as name",
    ("LRScheduler", "warmup_steps"): "0 instead of 200: runs are short",
    ("LRScheduler", "decay_ratio"): "0, constant, instead of None, decay at once, which TOML cannot say: 1.0",
    (
        "Parallelism",
        "pipeline_parallel_schedule",
    ): "those that are tested; the V-shaped end on the first rank",
    ("Parallelism", "spmd_backend"): "the one of three that works on torch 2.13",
    ("Checkpoint", "enable"): "on: a run that cannot resume is the exception",
    ("Checkpoint", "keep_best"): "ours; TorchTitan does not validate",
    ("Checkpoint", "keep_best_mode"): "as keep_best",
    ("Compile", "components"): "a tuple of the two that exist, as tables are immutable",
    ("ActivationCheckpoint", "mode"): "which of TorchTitan's classes; it has one class each",
}
"""Every key that differs from TorchTitan's in name, type or default, and why."""


@pytest.mark.parametrize("table", ENGINE_TABLES, ids=lambda table: table.__name__)
def test_engine_tables_mirror_torchtitan_but_for_the_listed_differences(table: type) -> None:
    for theirs in torchtitan_classes()[table.__name__]:
        known = fields_of(theirs)
        for key, (field, hint) in fields_of(table).items():
            same = key in known and plain(known[key][1]) == plain(hint)
            same = same and default(known[key][0]) == default(field)
            assert same != ((table.__name__, key) in DIFFERENCES), key


def test_optimizer_defaults_are_those_of_torchtitans_adamw() -> None:
    from torchtitan.components.optimizer.optimizer import default_adamw

    (group,) = default_adamw().param_groups
    ours = engine_tables.Optimizer()
    assert group.optimizer_name == ours.name
    expected = {**group.optimizer_kwargs, "lr": 8e-4}
    assert expected == {
        "lr": 8e-4,
        "betas": (ours.beta1, ours.beta2),
        "eps": ours.eps,
        "weight_decay": ours.weight_decay,
    }


def test_listed_differences_name_existing_keys() -> None:
    keys = {(table.__name__, key) for table in ENGINE_TABLES for key in fields_of(table)}
    assert DIFFERENCES.keys() <= keys


def plain(hint: Any) -> tuple[Any, bool]:
    """Returns a type without its annotations, and whether it may be None."""
    return unwrap_optional(hint)[0], is_optional(hint)


def default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def every_class() -> list[tuple[str, type]]:
    found = [(table.__name__, table) for table in TABLES]
    return found + [
        (f"{kind} {name}", component_class(kind, name)) for kind in kinds() for name in names(kind)
    ]


def defaults_now() -> dict[str, dict[str, str]]:
    return {
        label: {key: default_of(field) for key, (field, _) in fields_of(cls).items()}
        for label, cls in every_class()
        if cls.__module__.startswith("titanrl.")
    }


def test_defaults_equal_the_snapshot() -> None:
    # A changed default changes experiments that don't state it, so the changelog tells it. To accept it:
    # python -m tests.unit.config.test_tables
    assert defaults_now() == json.loads(SNAPSHOT.read_text())


def test_every_key_is_documented() -> None:
    bare = [
        f"{label}.{key}"
        for label, cls in every_class()
        if cls.__module__.startswith("titanrl.")
        for key in fields_of(cls)
        if not key_docs(cls).get(key)
    ]
    assert bare == []


def test_keys_that_may_be_off_are_off_by_default() -> None:
    # TOML has no null: a key whose default is something could never be switched off again by None.
    wrong = [
        f"{label}.{key}"
        for label, cls in every_class()
        for key, (field, hint) in fields_of(cls).items()
        if is_optional(hint) and default(field) is not None
    ]
    assert wrong == []


def test_types_and_defaults_read_as_toml() -> None:
    keys = fields_of(engine_tables.Training)
    assert type_name(keys["dtype"][1]) == '"bfloat16" | "float32"'
    assert type_name(keys["max_norm"][1]) == "number"
    assert type_name(fields_of(engine_tables.Compile)["components"][1]) == 'array of "model" | "loss"'
    assert type_name(fields_of(Algorithm)["kl"][1]) == "table: kl"
    assert default_of(keys["dtype"][0]) == '"float32"'
    assert default_of(fields_of(tables.Loop)["steps"][0]) == "required"
    assert default_of(fields_of(tables.Run)["name"][0]) == "off"
    assert unwrap_optional(fields_of(Algorithm)["kl"][1])[0] is KLTerm


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(defaults_now(), indent=1) + "\n")
