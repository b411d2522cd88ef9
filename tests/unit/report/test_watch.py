"""Terminal dashboard of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.unit.report.test_run_report import a_run
from titanrl.cli import app
from titanrl.report import watch as module
from titanrl.report.jsonl import JsonLines
from titanrl.report.watch import sparkline, watch


def test_sparkline_spans_its_numbers_and_its_width() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 0.0, 1.0, 1.0], 2) == "▁█"
    assert sparkline([5.0], 10) == "▁"


def test_once_shows_curves_times_alerts_and_responses(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a", answer="it is [4]")
    alerts = JsonLines(folder / "alerts.jsonl")
    alerts.write({"step": 2, "name": "kl", "message": "KL is high"})
    alerts.close()
    shown = CliRunner().invoke(app, ["watch", str(folder), "--once"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    for part in (
        "a  step 3 of 4  0.1 minutes left",
        "reward/mean",
        "▁▅█",
        "0.25 to 0.75",
        "sample 75%",
        "alert kl in step 2: KL is high",
        "it is [4]",
    ):
        assert part in shown.output


def test_live_view_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, looks = a_run(tmp_path / "a"), []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "reward/mean": 1.0}\n')

    monkeypatch.setattr(module.time, "sleep", sleep)
    console = Console(force_terminal=True, width=120, record=True)
    watch(folder, once=False, every_seconds=0.5, console=console)
    assert looks == [0.5]
    assert "step 4 of 4  finished" in console.export_text()


def test_files_are_reread_only_after_they_have_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, reads, looks = a_run(tmp_path / "a"), [], iter(range(4))
    read = module.RunRecord.read
    monkeypatch.setattr(module.RunRecord, "read", lambda path: reads.append(path) or read(path))

    def sleep(_: float) -> None:
        look = next(looks)
        if look == 1:
            with (folder / "samples.jsonl").open("a") as file:
                file.write('{"step": 3, "prompt": "2 + 2", "response": "a new answer"}\n')
        if look == 3:
            with (folder / "metrics.jsonl").open("a") as file:
                file.write('{"step": 4, "reward/mean": 1.0}\n')

    monkeypatch.setattr(module.time, "sleep", sleep)
    console = Console(force_terminal=True, width=120, record=True)
    watch(folder, once=False, every_seconds=0.5, console=console)
    assert len(reads) == 3, "at the start, with the answer, with the last step"
    assert "a new answer" in console.export_text()
