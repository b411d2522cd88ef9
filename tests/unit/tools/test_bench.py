"""Benchmark ratios: parsing, comparison with the stored ones, the page and the figure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tools.bench import bench as app
from tools.benchmark_results import Ratio, dumps, has_regressed, loads, merge, page, parse_results
from tools.ratios_plot import figure, plot

ROOT = Path(__file__).parents[3]
STORED = ROOT / "benchmarks" / "baseline.json"
TEST = "benchmarks/test_bench_startup.py::test_command[show]"


def results(ratio: Any, seconds: dict[str, list[float]] | None = None, test: str = TEST, **more: Any) -> str:
    info = {"ratio": ratio, "dtype": "torch.float32", "threads": 1, "torch": "2.13"} | more
    info |= {} if seconds is None else {"seconds": seconds}
    plain = {"fullname": "benchmarks/a.py::test_absolute", "extra_info": {"ms": 3.0}}
    return json.dumps({"benchmarks": [plain, {"fullname": test, "extra_info": info}]})


def test_ratio_has_the_quotient_of_opposite_quartiles_as_its_spread() -> None:
    (ratio,) = parse_results(
        results(8.0, {"ours": [1.0, 1.0, 1.0, 1.0, 3.0], "trl": [7.0, 8.0, 8.0, 8.0, 9.0]})
    )
    assert ratio == Ratio(
        test=TEST, peer="trl", ratio=8.0, low=3.75, high=8.5, dtype="float32", threads=1, torch="2.13"
    )  # quartiles: ours 1 and 2, theirs 7.5 and 8.5


def test_each_peer_has_its_own_ratio() -> None:
    ratios = parse_results(
        results({"naive": 2.0, "liger": 3.0}, {"ours": [1.0], "naive": [2.0], "liger": [3.0]})
    )
    assert [(each.peer, each.ratio, each.low) for each in ratios] == [
        ("liger", 3.0, None),
        ("naive", 2.0, None),
    ]


def test_stage_times_are_reported_and_stored(tmp_path: Path) -> None:
    stages = {"ours": {"sample": 3.0, "update": 5.0}, "trl": {"sample": 8.0, "update": 12.0}}
    (ratio,) = loads(dumps(parse_results(results(2.5, stages=stages))))
    assert ratio.stages == {"ours": {"sample": 0.375, "update": 0.625}, "trl": {"sample": 1.0, "update": 1.5}}
    (tmp_path / "test_bench_startup.py").write_text('"""Start-up."""\n')
    text = page([ratio], tmp_path)
    assert "| `command[show]` | trl | sample 1.00, update 1.50 | 2.50 |" in text
    assert "stages" not in page([replace(ratio, stages={})], tmp_path)


@pytest.mark.parametrize(
    ("ratio", "high", "is_worse"),
    [(9.0, 9.5, False), (8.0, 8.4, True), (8.0, 10.5, False), (8.0, None, True), (12.0, 13.0, False)],
)
def test_regression_exceeds_the_tolerance_and_the_spread(
    ratio: float, high: float | None, is_worse: bool
) -> None:
    stored = Ratio(test=TEST, peer="trl", ratio=10.0)
    assert has_regressed(replace(stored, ratio=ratio, low=ratio, high=high), stored) == is_worse


def test_new_ratios_replace_those_of_the_same_test() -> None:
    old = [Ratio(test=test, peer=peer, ratio=1) for test, peer in (("a", "x"), ("a", "y"), ("b", "x"))]
    assert [(each.test, each.ratio) for each in merge(old, [Ratio(test="a", peer="x", ratio=2)])] == [
        ("a", 2),
        ("b", 1),
    ]


@pytest.mark.slow
def test_command_plots_stores_and_fails_on_a_regression(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "test_bench_startup.py").write_text('"""Start-up against imports.\n\nMore.\n"""\n')
    file, base, text = tmp_path / "new.json", folder / "baseline.json", tmp_path / "performance.md"
    options = ["--baseline", str(base), "--page", str(text)]

    def bench(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["report", str(file), *options, *arguments], env={"COLUMNS": "200"})

    assert bench().exit_code == 2
    file.write_text(results(10.0))
    assert bench("--accept").exit_code == 0
    assert "| `command[show]` | peer | **10** |" in text.read_text()
    assert "Start-up against imports." in text.read_text()
    assert "More." not in text.read_text()
    assert (tmp_path / "performance.png").read_bytes()[:4] == b"\x89PNG"
    file.write_text(results(5.0))
    worse = bench()
    assert worse.exit_code == 1
    assert "below the stored ratio" in worse.output
    drawn = next(line for line in worse.output.splitlines() if "command[show]" in line)
    assert drawn.index("│") < drawn.index("●")


def test_performance_page_shows_the_stored_results() -> None:
    stored = loads(STORED.read_text())
    assert page(stored, STORED.parent) == (ROOT / "docs" / "performance.md").read_text(), (
        "docs/performance.md is stale: run `python -m tools.bench report RESULTS --accept`"
    )
    assert (ROOT / "docs" / "performance.png").is_file()
    for ratio in stored:
        file, _, name = ratio.test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()


@pytest.mark.slow
def test_plot_has_every_ratio_at_its_position(tmp_path: Path) -> None:
    slow = Ratio(test="benchmarks/test_bench_head.py::test_bench_head[a]", peer="naive", ratio=0.9)
    fast = Ratio(test=TEST, peer="trl", ratio=30.0, low=20.0, high=40.0)
    axes = figure([slow, fast]).axes
    assert [axis.get_title("left") for axis in axes] == ["head", "startup"]
    assert [[text.get_text() for text in axis.get_yticklabels()] for axis in axes] == [
        ["head[a], naive"],
        ["command[show], trl"],
    ]
    drawn = [[list(line.get_xdata()) for line in axis.get_lines()] for axis in axes]
    assert drawn == [[[0.9], [1.0, 1.0]], [[20.0, 40.0], [30.0], [1.0, 1.0]]]
    plots = [plot([slow, fast], tmp_path / name).read_bytes() for name in ("a.png", "b.png")]
    assert plots[0] == plots[1]
