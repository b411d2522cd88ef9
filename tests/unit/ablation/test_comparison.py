"""Comparison of runs: budgets, paired differences, outcomes; and the files of the report."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.unit.ablation.conftest import Ablation, Finish
from titanrl.ablation import summary
from titanrl.ablation.comparison import Measurement, compare, evaluate_expectations, measure
from titanrl.ablation.curves import check_metric, read_curves
from titanrl.ablation.files import read_results, results_csv, write_files
from titanrl.ablation.plan import plan
from titanrl.ablation.settings import Expectation, Settings
from titanrl.errors import ConfigError, TrainingError


def line(step: int, value: float | None, tokens: float = 10.0, **more: float) -> dict[str, float]:
    times = {"time/step_seconds": 3.0, "time/validate_seconds": 1.0}
    metrics = {"step": step, "sample/tokens": tokens, **times, **more}
    return metrics if value is None else metrics | {"reward/mean": value}


def at(values: dict[str, list[float]], metric: str = "reward/mean") -> list[Measurement]:
    return [
        Measurement(variant, seed, metric, "steps", 2.0, value)
        for variant, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]


def test_curves_count_resampled_tokens_and_exclude_validation(tmp_path: Path) -> None:
    import json

    lines = [line(1, 0.5), line(2, None, tokens=30.0), line(3, 0.9)]  # Step 2 needed three attempts.
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    curves = read_curves(tmp_path, ["reward/mean"])
    assert curves.cost["tokens"] == [10.0, 40.0, 50.0]
    assert curves.cost["seconds"] == [2.0, 4.0, 6.0]
    assert curves.points("reward/mean", "tokens") == [(10.0, 0.5), (50.0, 0.9)]
    assert curves.at("reward/mean", "steps", 2) == 0.5
    assert curves.at("reward/mean", "tokens", 49.9) == 0.5
    assert curves.at("reward/mean", "seconds", 1.9) is None
    assert curves.at("reward/mean", "steps", 3, window=2) == 0.9  # Step 2 has none.
    assert curves.at("reward/mean", "steps", 3, window=3) == pytest.approx(0.7)


def test_unknown_metric_is_refused_with_the_closest_match(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    check_metric(tmp_path, "reward/mean")
    with pytest.raises(TrainingError, match=r"got 'reward/maen', which .* lacks; did you mean 'reward/mean'"):
        check_metric(tmp_path, "reward/maen")


@pytest.mark.slow
def test_budgets_default_to_the_largest_that_every_run_reached(ablation: Ablation, finish: Finish) -> None:
    planned = plan(ablation())
    for run in planned.runs:
        cost = 10.0 if run.variant == "clip_high=0.2" else 30.0
        finish(run, [line(1, 1.0, cost), line(2, 2.0, cost)])
    runs = {(r.variant, r.seed): read_curves(r.folder.path, ["reward/mean"]) for r in planned.runs}
    measured = measure(runs, planned.settings)
    assert {(each.budget, each.limit) for each in measured} == {("steps", 2), ("tokens", 20), ("seconds", 4)}
    # 20 tokens: two steps of the cheap variant, none of the other.
    assert {each.variant for each in measured if each.budget == "tokens"} == {"clip_high=0.2"}


def test_differences_are_taken_seed_by_seed() -> None:
    base, other = compare(at({"a": [1.0, 5.0, 9.0], "b": [1.5, 5.5, 9.5]}), ["a", "b"])
    assert base.difference is None
    assert (base.mean, other.mean) == (5.0, 5.5)
    assert base.low < 0 < other.low + 10  # Seeds differ a lot, pairs not at all.
    assert other.difference is not None
    assert (other.difference.low, other.difference.high) == (0.5, 0.5)
    assert other.difference.p == 2 / 8


def test_seeds_missing_in_one_variant_are_not_paired() -> None:
    measured = [each for each in at({"a": [1.0, 2.0, 3.0], "b": [2.0, 9.0, 4.0]}) if each[:2] != ("b", 1)]
    _, other = compare(measured, ["a", "b"])
    assert other.difference is not None
    assert (other.difference.pairs, other.difference.mean) == (2, 1.0)
    alone = compare(at({"a": [1.0], "b": [2.0]}), ["a", "b"])[1]
    assert alone.difference is not None
    assert (alone.low, alone.difference.high) == (-math.inf, math.inf)
    assert compare(at({"b": [1.0, 2.0]}), ["a", "b"])[0].difference is None


def test_p_is_corrected_within_a_metric() -> None:
    values = {"a": [0.0] * 4, "b": [1.0, 2.0, 3.0, 4.0], "c": [1.0, -1.0, 1.0, -1.0]}
    table = compare([*at(values), *at(values, "kl/value")], ["a", "b", "c"])
    assert [row.difference and row.difference.p for row in table] == [None, 2 / 16, 1.0] * 2
    assert [row.difference and row.difference.p_holm for row in table] == [None, 4 / 16, 1.0] * 2


@pytest.mark.parametrize(
    ("values", "direction", "result"),
    [
        ([1.0, 2.0, 3.0] * 2, "higher", "as expected"),
        ([1.0, 2.0, 3.0] * 2, "lower", "the opposite"),
        ([-1.0, 2.0, 3.0] * 2, "higher", "undecided"),
        ([-1.0, -2.0, -3.0] * 2, "lower", "as expected"),
        ([1.0, 2.0, 3.0, 1.0, 2.0], "higher", "undecided"),  # p is 2 / 2^5 at least.
        ([0.1, -0.1, 0.1] * 2, "same", "as expected"),
        ([0.1, -0.1, 0.9] * 2, "same", "undecided"),
        ([1.0, 2.0, 3.0] * 2, "same", "the opposite"),
        ([1.0, 1.0, 1.0, 1.0], "higher", "too few seeds"),
        ([0.0, 0.0, 0.0, 0.0], "same", "too few seeds"),
    ],
)
def test_outcomes(values: list[float], direction: str, result: str) -> None:
    margin = 0.5 if direction == "same" else 0.0
    expectation = Expectation(variant="b", direction=direction, margin=margin)  # type: ignore[arg-type]
    settings = Settings(base="x", metric="reward/mean", expect=(expectation,))
    table = compare(at({"a": [0.0] * len(values), "b": values}), ["a", "b"])
    assert evaluate_expectations(settings, table)[0].result == result
    assert evaluate_expectations(settings, table[:1])[0].result == "not measured"


def test_direction_is_decided_by_the_corrected_p() -> None:
    """Six seeds agree, p = .031; three comparisons make it .094."""
    expectation = Expectation(variant="b", direction="higher")
    settings = Settings(base="x", metric="reward/mean", expect=(expectation,))
    agree = {"a": [0.0] * 6, "b": [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]}
    (alone,) = evaluate_expectations(settings, compare(at(agree), ["a", "b"]))
    others = {"c": [1.0] * 6, "d": [2.0] * 6}
    (among,) = evaluate_expectations(settings, compare(at(agree | others), ["a", "b", "c", "d"]))
    assert (alone.result, among.result) == ("as expected", "undecided")


def test_more_than_eight_seeds_are_reported_as_minimum_median_and_maximum() -> None:
    def last_column(count: int) -> tuple[str, str]:
        rows = compare(at({"a": [float(seed**2) for seed in range(count)]}), ["a"])
        (table,) = summary.result_tables(rows, "a", count)
        return table.head[-1], table.rows[0][-1]

    assert last_column(8) == ("values by seed", "0 1 4 9 16 25 36 49")
    assert last_column(9) == ("min, median, max", "0 16 64")


@pytest.mark.slow
def test_report_states_results_and_method(ablation: Ablation, finish: Finish) -> None:
    head = 'title = "Which?"\n[[expect]]\nvariant = "clip_high=0.28"\ndirection = "higher"'
    planned = plan(ablation(head=head))
    for run in planned.runs:
        better = 0.1 if run.variant == "clip_high=0.28" else 0.0
        finish(run, [line(1, 0.1), line(2, 0.5 + better + 0.01 * run.seed)])
    table, report, page = write_files(planned, [], "titanrl ablate study.toml")
    text = report.read_text()
    for part in (
        "# Which?",
        "| clip_high=0.28 higher than clip_high=0.2 | reward/mean | +0.1 | 0.1 to 0.1 | too few seeds |",
        "### reward/mean at 2 steps",
        "| clip_high=0.28 | 0.61 | 0.5852 to 0.6348 | +0.1 | 0.1 to 0.1 | 0.25 | 0.25 | 0.6 0.61 0.62 |",
        "With 3 seeds, its minimum is 0.25",
        "| algorithm.loss.clip_high | 0.2 | 0.28 |",
        "are equal in all variants",
        "| command | titanrl ablate study.toml |",
        "| finished | 6 of 6 runs |",
        "torch ",
    ):
        assert part in text, part
    measured = read_results(table)
    assert len(measured) == 18
    assert results_csv(measured) == table.read_text()
    html = page.read_text()
    assert html.count("mean and 95% interval") >= 2
    assert "clip_high=0.28 higher than clip_high=0.2" in html
    assert "reward/mean by tokens" in html


@pytest.mark.slow
def test_report_of_unfinished_runs_is_marked_as_partial(ablation: Ablation, finish: Finish) -> None:
    planned = plan(ablation())
    with pytest.raises(TrainingError, match="nothing to report"):
        write_files(planned, [], "")
    finish(planned.runs[0], [line(2, 0.5)])
    text = write_files(planned, [], "")[1].read_text()
    assert "| finished | 1 of 6 runs |" in text
    assert "| 0.5 | -inf to inf | – | – | – | – | 0.5 – – |" in text


def test_results_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="must begin with variant,seed,metric,budget,limit,value"):
        read_results(path)
