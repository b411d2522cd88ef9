"""Every published ablation is right, has been run with all its seeds, and stands in docs/findings.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.conftest import registry_as_before
from titanrl.ablation.files import read_results
from titanrl.ablation.findings import findings, published
from titanrl.ablation.plan import outline, plan
from titanrl.models import tiny

__all__ = ["registry_as_before"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "ablations"
FILES = published(FOLDER)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.create(tmp_path_factory.mktemp("ablations") / "model")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_ablation_is_right_and_expects_something_published(file: Path, model: Path) -> None:
    planned = plan(file, [f"model.path={model}"])
    assert planned.settings.seeds == 5
    assert planned.settings.expect
    assert planned.settings.title
    assert planned.settings.claim
    assert planned.settings.source


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_results_are_of_every_variant_and_seed(file: Path) -> None:
    settings, variants = outline(file)
    found = {
        (each.variant, each.seed, each.metric)
        for each in read_results(FOLDER / "results" / f"{file.stem}.csv")
    }
    wanted = {(variant.name, seed, settings.metric) for variant in variants for seed in range(settings.seeds)}
    assert wanted <= found


def test_findings_are_what_the_results_say() -> None:
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert page == findings(FILES, FOLDER / "results", "../experiments/ablations"), "make docs"
    assert len(FILES) >= 8
