"""Every published ablation is valid, trains, has results of all seeds, and is in docs/findings.md."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib.image import imread

from tests.unit.config.conftest import registry_as_before
from titanrl.ablation.files import read_results
from titanrl.ablation.plan import outline, plan
from titanrl.ablation.plot import plot
from titanrl.config import load
from titanrl.config.experiment import Experiment
from titanrl.models import tiny
from titanrl.report.jsonl import read_jsonl
from titanrl.training.run import train
from tools.findings import findings, panels, published

__all__ = ["registry_as_before"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "ablations"
FILES = published(FOLDER)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.create(tmp_path_factory.mktemp("ablations") / "model", scale=0.3)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_ablation_is_valid_and_has_a_published_expectation(file: Path, model: Path) -> None:
    planned = plan(file, [f"model.path={model}"])
    assert planned.settings.seeds == 20
    assert planned.settings.expect
    assert planned.settings.title
    assert planned.settings.claim
    assert planned.settings.source


# Answers of an untrained model are never right; letters that do not repeat are.
SMALL = (
    "reward=[{name='repetition', n=1, label='exact_match'}]",
    "loop.steps=2",
    "loop.prompts_per_step=4",
    "evaluation.num_prompts=2",
    "sampler.max_response_tokens=8",
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_variant_trains(file: Path, model: Path, tmp_path: Path) -> None:
    planned = plan(file, [f"model.path='{model}'", f"run.folder='{tmp_path}'", *SMALL])
    for run in planned.runs[: len(planned.variants)]:
        steps = trained(run.experiment)
        assert [line["step"] for line in steps] == [0, 1, 2], run.variant
        assert all(math.isfinite(line["loss/total"]) for line in steps[1:]), run.variant


def trained(experiment: Experiment) -> list[dict[str, float]]:
    """Train and return the metrics of each step, starting with the validation before the first step."""
    return list(read_jsonl(train(experiment) / "metrics.jsonl"))


def test_initial_model_of_the_ablations_trains(model: Path, tmp_path: Path) -> None:
    small = ["loop.steps=2", "loop.prompts_per_step=4", "evaluation.num_prompts=4", "checkpoint.enable=false"]
    own = [f"model.path='{model}'", f"run.folder='{tmp_path}'", *small]
    assert len(trained(load(FOLDER / "base_model.toml", own))) == 3


def test_stale_sampler_uses_the_weights_of_the_previous_step(model: Path, tmp_path: Path) -> None:
    own = [f"model.path='{model}'", f"run.folder='{tmp_path}'", *SMALL, "optimizer.lr=0.1"]
    stale = "sampler={name='stale', delay=1, max_response_tokens=8}"
    metrics = {}
    for name, overrides in (("fresh", []), ("stale", [stale])):
        experiment = load(FOLDER / "base.toml", [*own, *overrides, f"run.name={name}", "loop.steps=3"])
        metrics[name] = trained(experiment)[1:]
    for fresh, old in zip(metrics["fresh"], metrics["stale"], strict=True):
        assert fresh["sample/logprob_diff"] < 1e-4
        assert "sample/stale_logprob_diff" not in fresh
        assert ("sample/stale_logprob_diff" in old) == (old["step"] > 1)
    assert metrics["stale"][0]["sample/logprob_diff"] < 1e-4
    assert min(line["sample/stale_logprob_diff"] for line in metrics["stale"][1:]) > 1e-3


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_results_cover_every_variant_and_seed(file: Path) -> None:
    settings, variants = outline(file)
    measured = {
        (each.variant, each.seed, each.metric)
        for each in read_results(FOLDER / "results" / f"{file.stem}.csv")
    }
    wanted = {(variant.name, seed, settings.metric) for variant in variants for seed in range(settings.seeds)}
    assert wanted <= measured


def test_findings_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert page == findings(FILES, FOLDER / "results", "../experiments/ablations"), "make docs"
    assert len(FILES) >= 8


def test_findings_plot_is_up_to_date(tmp_path: Path) -> None:
    drawn = imread(plot(panels(FILES, FOLDER / "results"), tmp_path / "findings.png"))
    stored = imread(ROOT / "docs" / "findings.png")
    assert drawn.shape == stored.shape, "make docs"
    assert abs(drawn - stored).mean() < 0.002, "make docs"


def test_findings_panel_shows_each_seed_of_the_expected_metric() -> None:
    (panel,) = panels([FOLDER / "kl_k3_in_loss.toml"], FOLDER / "results")
    assert [row.variant for row in panel.rows] == ["k2", "k3", "k3_straight_through"]
    assert all(row.metric == "kl/value" and len(row.values) == 20 for row in panel.rows)
    assert panel.results == {"k3": "the opposite", "k3_straight_through": "as expected"}
