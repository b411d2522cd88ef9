"""Held-out metrics equal those of an update; losses on pairs do not depend on the packing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.unit.engine.conftest import pad_columns
from titanrl.algorithm.metrics import means
from titanrl.algorithm.objective import Objective
from titanrl.engine import Engine
from titanrl.errors import ConfigError

PAIRS = 5
COEFFICIENTS = (0.0, 0.0)


def pairs() -> TensorDict:
    """Returns five pairs of rows of different lengths, each with its own prompt; one row is empty."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(4, 90, (2 * PAIRS, 24), generator=generator)
    mask = torch.zeros(2 * PAIRS, 23, dtype=torch.bool)
    for row in range(2 * PAIRS):
        raw[row, :4] = raw[row // 2 * 2, :4]
        mask[row, 3 : 5 + int(torch.randint(1, 17, (1,), generator=generator))] = True
    mask[3] = False
    live = mask.any(1)
    return TensorDict(
        {
            "input_ids": raw[:, :-1],
            "labels": raw[:, 1:],
            "loss_mask": mask,
            "group_id": torch.arange(2 * PAIRS) // 2,
            "ref_logprob": torch.randn(2 * PAIRS, 23, generator=generator) - 4,
            "loss_weight": mask / mask.sum(1, keepdim=True).clamp_min(1) / live.sum(),
        },
        batch_size=[2 * PAIRS],
    )


def measured(engine: Engine, batch: TensorDict, table: dict[str, Any]) -> dict[str, float]:
    objective = Objective(loss=titanrl.build("loss", table))
    actual = means(engine.measure(batch, objective, COEFFICIENTS))
    return {name: value for name, value in actual.items() if name.startswith("loss/")}


def test_measure_gives_the_metrics_of_an_update_without_updating(
    make_engine: Callable[..., Engine], one_thread: None
) -> None:
    objective = Objective(loss=titanrl.build("loss", {"name": "dpo"}))
    engine, batch = make_engine(), pairs()
    before = {name: value.clone() for name, value in engine.weights()}
    measures = [measured(engine, batch, {"name": "dpo"}) for _ in range(2)]
    assert all(torch.equal(value, before[name]) for name, value in engine.weights())
    updated = means(engine.update(batch, objective, COEFFICIENTS))
    assert measures[0] == measures[1] == {name: updated[name] for name in measures[0]}
    assert {"loss/total", "loss/accuracy", "loss/margin"} <= measures[0].keys()
    assert updated["update/skipped"] == 0.0
    assert measured(engine, batch, {"name": "dpo"}) != measures[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpo", "ipo", "simpo", "orpo", "cpo"])
def test_pair_loss_does_not_depend_on_the_layout(make_engine: Callable[..., Engine], name: str) -> None:
    batch, table = pairs(), {"name": name}
    expected = measured(make_engine(), batch, table)
    order = torch.tensor([3, 0, 4, 1, 2])
    permuted = batch[torch.stack([2 * order, 2 * order + 1], 1).flatten()]
    small = {"max_tokens_per_microbatch": 1}
    layouts = {
        "permuted": measured(make_engine(), permuted, table),
        "padded": measured(make_engine(), pad_columns(batch, 40), table),
        "alone": measured(make_engine(training=small), batch, table),
    }
    for layout, actual in layouts.items():
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6), layout


def test_swapped_pairs_have_the_opposite_margin(make_engine: Callable[..., Engine]) -> None:
    batch = pairs()
    rows = torch.arange(2 * PAIRS).view(-1, 2).flip(1).flatten()
    there, back = (measured(make_engine(), each, {"name": "dpo"}) for each in (batch, batch[rows]))
    assert abs(there["loss/margin"]) > 0.01
    assert back["loss/margin"] == pytest.approx(-there["loss/margin"], rel=1e-5)
    assert back["loss/chosen_reward"] == pytest.approx(there["loss/rejected_reward"], rel=1e-5)


def test_accuracy_counts_pairs_not_tokens(make_engine: Callable[..., Engine]) -> None:
    batch = pairs()
    batch["loss_mask"][3, 5:8] = True
    engine = make_engine()
    ratio = torch.where(batch["loss_mask"], engine.score(batch)["logprob"] - batch["ref_logprob"], 0.0).sum(1)
    right = (ratio[0::2] > ratio[1::2]).float()
    assert 0 < float(right.mean()) < 1
    assert measured(engine, batch, {"name": "dpo"})["loss/accuracy"] == pytest.approx(float(right.mean()))


def test_loss_across_pairs_refuses_micro_batches(make_engine: Callable[..., Engine]) -> None:
    table = {"name": "dpo", "variant": "aot"}
    measured(make_engine(training={"max_tokens_per_microbatch": 1000}), pairs(), table)
    with pytest.raises(ConfigError, match=r"must be one micro-batch .* got 5 on 1; raise \[training\]"):
        measured(make_engine(training={"max_tokens_per_microbatch": 1}), pairs(), table)
