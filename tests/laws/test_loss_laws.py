"""Laws of every loss, over titanrl.names("loss"): a new one is tested by existing."""

from __future__ import annotations

import dataclasses
import math
import pickle
import tomllib
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import titanrl
from tests.laws import batches
from tests.laws.batches import LAW, Batch
from tests.laws.loss_tables import Table, table_id, tables
from tests.laws.stop_gradient import central_differences
from titanrl import PolicyOutputs
from titanrl.algorithm.objective import Objective

ALL = tables()
SILENT = [table for table in ALL if getattr(titanrl.build("loss", table), "is_zero_without_advantage", False)]
every_loss = pytest.mark.parametrize("table", ALL, ids=map(table_id, ALL))
NO_TERMS = torch.zeros(2)
GARBAGE = (math.nan, math.inf, -math.inf, 1e9)
REQUIRED = {"constant_length": {"length": 7}}
"""Fields without which an aggregation can't be built."""


def evaluate(
    loss: Any, policy: PolicyOutputs, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Returns the token loss [B, L], 0 where masked; the gradients of the total, [B, L, ..]; the metrics."""
    mask = batch["loss_mask"]
    policy = batches.leaves(policy)
    result = loss(policy, batch)
    total, _ = Objective(loss=loss)(policy._replace(entropy=None), batch, NO_TERMS)
    gradients = torch.autograd.grad(total, list(policy), materialize_grads=True)
    stacked = torch.cat([x.reshape(*mask.shape, -1) for x in gradients], -1)
    return torch.where(mask, result.loss, 0.0).detach(), stacked, result.metrics


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.allclose(left, right, rtol=1e-9, atol=1e-11)


@every_loss
@given(sample=batches.samples(), garbage=st.sampled_from(GARBAGE), dead=st.integers(0, 1))
@LAW
def test_loss_ignores_masked_places(
    table: Table, sample: tuple[PolicyOutputs, Batch], garbage: float, dead: int
) -> None:
    loss = titanrl.build("loss", table)
    policy, batch = sample
    batch["loss_mask"][dead] = False
    batch["loss_weight"] = torch.where(batch["loss_mask"], batch["loss_weight"], 0.0)
    value, gradient, _ = evaluate(loss, policy, batch)
    dirty_value, dirty_gradient, metrics = evaluate(loss, *batches.fill_masked(policy, batch, garbage))
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    assert not gradient[~batch["loss_mask"]].any()
    assert torch.equal(value, dirty_value)
    assert torch.equal(gradient, dirty_gradient)
    assert all(x.isfinite().all() for x in metrics.values())


@every_loss
def test_loss_is_zero_and_finite_on_an_all_masked_batch(table: Table) -> None:
    policy, batch = batches.sample([2, 4], 5, seed=1)
    batch["loss_mask"] = torch.zeros_like(batch["loss_mask"])
    batch["loss_weight"] = torch.zeros_like(batch["loss_weight"])
    policy, batch = batches.fill_masked(policy, batch, math.nan)
    loss = titanrl.build("loss", table)
    result = loss(batches.leaves(policy), batch)
    _, gradient, _ = evaluate(loss, policy, batch)
    assert not result.loss.any()
    assert not gradient.any()


@every_loss
@given(sample=batches.samples(), seed=st.integers(0, 1000))
@LAW
def test_loss_ignores_inserted_masked_tokens_and_padding(
    table: Table, sample: tuple[PolicyOutputs, Batch], seed: int
) -> None:
    loss = titanrl.build("loss", table)
    policy, batch = sample
    rows, length = batch["loss_mask"].shape
    wider = length + 3
    shuffled = torch.rand(rows, wider, generator=torch.Generator().manual_seed(seed)).argsort(-1)
    places = shuffled[:, :length].sort(-1).values
    value, gradient, _ = evaluate(loss, policy, batch)
    spread_value, spread_gradient, _ = evaluate(loss, *batches.spread(policy, batch, places, wider, math.nan))
    assert close(spread_value.gather(1, places), value)
    assert close(spread_gradient.gather(1, places[..., None].expand(gradient.shape)), gradient)


@every_loss
@given(sample=batches.samples(), seed=st.integers(0, 1000))
@LAW
def test_loss_does_not_depend_on_the_order_of_rows(
    table: Table, sample: tuple[PolicyOutputs, Batch], seed: int
) -> None:
    loss = titanrl.build("loss", table)
    policy, batch = sample
    # Two tokens of one group have the same covariance, and ties go by place.
    assume(all(batch["loss_mask"][batch["group_id"] == group].sum() != 2 for group in range(3)))
    size = 2 if getattr(loss, "paired", False) else 1
    group = batch["group_id"][::size]
    # A random order of groups, and of the rows (or pairs) within each.
    generator = torch.Generator().manual_seed(seed)
    keys = torch.rand(int(group.max()) + 1, generator=generator)[group] + 1e-3 * torch.rand(
        len(group), generator=generator
    )
    order = (keys.argsort()[:, None] * size + torch.arange(size)).flatten()
    value, gradient, _ = evaluate(loss, policy, batch)
    moved_value, moved_gradient, _ = evaluate(loss, *batches.take(policy, batch, order))
    assert close(moved_value, value[order])
    assert close(moved_gradient, gradient[order])


@pytest.mark.parametrize("table", SILENT, ids=map(table_id, SILENT))
@given(sample=batches.samples(), dead=st.sets(st.integers(0, 11)))
@LAW
def test_loss_that_says_so_is_zero_in_rows_without_advantage_and_does_not_miss_them(
    table: Table, sample: tuple[PolicyOutputs, Batch], dead: set[int]
) -> None:
    loss = titanrl.build("loss", table)
    policy, batch = sample
    rows = len(batch["loss_mask"])
    silent = torch.tensor([row in dead for row in range(rows)])
    batch["advantage"] = torch.where(silent[:, None], 0.0, batch["advantage"])
    value, gradient, _ = evaluate(loss, policy, batch)
    assert not value[silent].any()
    assert not gradient[silent].any()
    if not silent.all():
        left = evaluate(loss, *batches.take(policy, batch, (~silent).nonzero()[:, 0]))
        assert close(left[0], value[~silent])
        assert close(left[1], gradient[~silent])


@every_loss
@given(sample=batches.samples())
@LAW
def test_loss_that_compares_rows_says_so(table: Table, sample: tuple[PolicyOutputs, Batch]) -> None:
    """Any other loses nothing where a group is cut into micro-batches."""
    loss = titanrl.build("loss", table)
    if Objective(loss=loss).couples_group:
        pytest.skip("declared: it compares rows of a group")
    policy, batch = sample
    value, gradient, _ = evaluate(loss, policy, batch)
    for part in (torch.arange(0, len(value), 2), torch.arange(1, len(value), 2)):
        part_value, part_gradient, _ = evaluate(loss, *batches.take(policy, batch, part))
        assert close(part_value, value[part]), "declare couples_group"
        assert close(part_gradient, gradient[part]), "declare couples_group"


@every_loss
@given(data=st.data(), sample=batches.samples(), cut=st.integers(0, 3))
@LAW
def test_loss_and_metrics_add_over_micro_batches(
    table: Table, data: st.DataObject, sample: tuple[PolicyOutputs, Batch], cut: int
) -> None:
    loss = titanrl.build("loss", table)
    if getattr(loss, "couples_step", False):
        pytest.skip("declared: its pairs are coupled over the whole step")
    policy, batch = sample
    name = data.draw(st.sampled_from(titanrl.names("aggregation")))
    aggregation = titanrl.build("aggregation", {"name": name} | REQUIRED.get(name, {}))
    step = {**batch, "loss_weight": aggregation(batch["loss_mask"], batch["group_id"]).double()}
    objective = Objective(loss=loss)
    total, sums = objective(policy, step, NO_TERMS)
    part = batch["group_id"] < cut
    halves = [
        objective(*batches.take(policy, step, rows.nonzero()[:, 0]), NO_TERMS)
        for rows in (part, ~part)
        if rows.any()
    ]
    assert close(sum(half for half, _ in halves), total)
    for name, (metric, count) in sums.items():
        if name != "loss/total":
            # Metric sums are float32.
            assert torch.allclose(sum(half[name][0] for _, half in halves), metric, rtol=1e-5, atol=1e-6), (
                name
            )
            assert sum(half[name][1] for _, half in halves) == count


@every_loss
@given(sample=batches.samples(max_groups=1, max_length=4))
@settings(LAW, max_examples=3)
def test_loss_gradient_is_that_of_central_differences(
    table: Table, sample: tuple[PolicyOutputs, Batch]
) -> None:
    loss = titanrl.build("loss", table)
    policy, batch = sample
    objective = Objective(loss=loss)
    for name in ("logprob", *getattr(loss, "needs", ())):

        def total(x: torch.Tensor, name: str = name) -> torch.Tensor:
            return objective(policy._replace(**{name: x}, entropy=None), batch, NO_TERMS)[0]

        x = getattr(policy, name).clone().requires_grad_()
        value = total(x)
        analytic = (
            torch.autograd.grad(value, x, materialize_grads=True)[0]
            if value.requires_grad
            else torch.zeros_like(x)
        )
        numeric = central_differences(total, x.detach())
        assert torch.allclose(analytic, numeric, rtol=1e-5, atol=1e-7), name


@every_loss
def test_loss_reads_its_keys_only_and_writes_nothing(table: Table) -> None:
    loss = titanrl.build("loss", table)
    policy, batch = batches.sample([2, 4], 5, seed=2)
    allowed = {"logprob", *getattr(loss, "needs", ())}
    narrow = PolicyOutputs(**{name: x for name, x in policy._asdict().items() if name in allowed})
    recorder = batches.Recorder({key: value.clone() for key, value in batch.items()})
    first = loss(narrow, recorder)
    assert recorder.read <= {*loss.in_keys, "loss_mask", "group_id"}
    assert all(torch.equal(recorder.batch[key], value) for key, value in batch.items())
    assert torch.equal(loss(narrow, recorder).loss, first.loss)


@every_loss
def test_loss_metrics_are_detached_and_shaped_like_the_loss(table: Table) -> None:
    policy, batch = batches.sample([2, 4], 5, seed=3)
    result = titanrl.build("loss", table)(batches.leaves(policy), batch)
    shape = batch["loss_mask"].shape
    for name, value in result.metrics.items():
        assert value.shape in (shape, (shape[0], 1)), name
        assert not value.requires_grad, name
        if value.shape == shape:
            assert not value[~batch["loss_mask"]].any(), name


@every_loss
def test_loss_survives_pickle_and_toml(table: Table) -> None:
    loss = titanrl.build("loss", table)
    assert pickle.loads(pickle.dumps(loss)) == loss
    fields = {field.name: getattr(loss, field.name) for field in dataclasses.fields(loss)}
    text = "".join(f"{key} = {toml(value)}\n" for key, value in fields.items() if value is not None)
    assert titanrl.build("loss", {"name": table["name"], **tomllib.loads(text)}) == loss


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    return repr(value)
