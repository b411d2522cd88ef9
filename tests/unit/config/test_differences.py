"""Differences of settings on a resume: which are harmless, which need acceptance, which cannot be."""

from __future__ import annotations

import pytest

from tests.unit.config.conftest import Write
from titanrl.config.differences import check_accepted, differences, flattened
from titanrl.config.dump import to_table
from titanrl.config.load import load
from titanrl.errors import ConfigError

HARMLESS = [
    "loop.steps=9",
    "loop.data_workers=2",
    "checkpoint.interval=3",
    "checkpoint.keep_latest_k=0",
    "report.tensorboard=false",
    "evaluation.interval=1",
    "compile.enable=true",
    "activation_checkpoint.mode=full",
    "parallelism.data_parallel_shard_degree=2",
    "training.max_tokens_per_microbatch=4096",
    "alerts.window=3",
    "run.folder=elsewhere",
]
EVALUATION = "evaluation={prompts={name='lab_source',dataset='sums'}}"


@pytest.mark.parametrize("override", HARMLESS)
def test_cost_display_and_duration_may_change(write: Write, override):
    path = write()
    old, new = (to_table(load(path, [EVALUATION, *more])) for more in ([], [override]))
    (found,) = differences(old, new)
    assert (found.key, found.effect) == (override.partition("=")[0], "none")
    check_accepted([found], [], [])


@pytest.mark.parametrize(
    ("accepted", "is_accepted"),
    [
        (["optimizer.lr"], True),
        (["optimizer"], True),
        (["all"], True),
        (["optimizer.eps"], False),
        (["run"], False),
        ([], False),
    ],
)
def test_change_of_what_is_measured_needs_its_key_or_table(write: Write, accepted, is_accepted):
    path = write()
    old, new = to_table(load(path)), to_table(load(path, ["optimizer.lr=1e-3"]))
    (found,) = differences(old, new)
    assert str(found) == "optimizer.lr: 1e-06 -> 0.001"
    if is_accepted:
        check_accepted([found], accepted, flattened(old))
    else:
        with pytest.raises(ConfigError, match=r"accept them: --accept optimizer\.lr$"):
            check_accepted([found], accepted, flattened(old))


def test_fewer_or_more_steps_need_acceptance_where_they_move_the_decay(write: Write):
    path, decay = write(), "lr_scheduler.decay_ratio=0.5"
    old, new = (to_table(load(path, [decay, *more])) for more in ([], ["loop.steps=4"]))
    (found,) = differences(old, new)
    assert found.effect == "changes"
    assert "[lr_scheduler] total_steps is not set" in found.reason
    fixed = "lr_scheduler.total_steps=2"
    old, new = (to_table(load(path, [decay, fixed, *more])) for more in ([], ["loop.steps=4"]))
    assert [each.effect for each in differences(old, new)] == ["none"]


def test_exchanged_component_is_accepted_by_its_table():
    old = {"algorithm": {"loss": {"name": "a", "x": 1}}, "optimizer": {"name": "Adam", "lr": 1}}
    new = {"algorithm": {"loss": {"name": "b", "y": 2}}, "optimizer": {"name": "AdamW", "lr": 2}}
    with pytest.raises(ConfigError) as error:
        check_accepted(differences(old, new), [], [])
    assert str(error.value).endswith("--accept algorithm.loss --accept optimizer.name --accept optimizer.lr")


def test_entries_of_arrays_are_compared_one_by_one():
    old, new = {"filter": [{"name": "a"}]}, {"filter": [{"name": "a"}, {"name": "b"}]}
    assert [str(each) for each in differences(old, new)] == ["filter.1.name: absent -> 'b'"]
    assert [str(each) for each in differences({"filter": []}, old)] == ["filter.0.name: absent -> 'a'"]
