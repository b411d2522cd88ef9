"""Alerts of a run on the tiny model: each is reported once, and [alerts] stop ends the run."""

from __future__ import annotations

import pytest

from tests.e2e.test_training import file, lines  # noqa: F401
from titanrl.config import load
from titanrl.errors import TrainingError
from titanrl.training.run import train

OVERRIDES = [
    "alerts.window=1",
    "alerts.entropy=100.0",
    "alerts.kl=1e-4",
    "alerts.stop=['kl']",
    "evaluation=",
    "checkpoint.interval=50",
    "report.tensorboard=true",
]


def test_alert_is_reported_once_and_may_stop_a_resumable_run(file, tmp_path, capsys):  # noqa: F811
    experiment = load(file, OVERRIDES)
    with pytest.raises(TrainingError, match=r"stopped in step 2: alert kl is listed in \[alerts\] stop"):
        train(experiment)
    run = tmp_path / "runs" / "tiny"
    alerts = [(row["step"], row["name"]) for row in lines(run, "alerts.jsonl")]
    assert alerts == [(1, "entropy"), (2, "kl")]
    shown = capsys.readouterr().out
    assert shown.count("alert entropy in step 1: loss/entropy is") == 1
    assert shown.count("alert kl in step 2") == 1
    board = b"".join(path.read_bytes() for path in (run / "tensorboard").iterdir())
    assert b"alerts/entropy" in board
    assert b"alerts/kl" in board
    assert len(lines(run)) == 2
    # The step that ended it has a checkpoint, and what stood then is no news.
    train(experiment, resume=True)
    assert [row["step"] for row in lines(run)] == [1, 2, 3, 4]
    assert [(row["step"], row["name"]) for row in lines(run, "alerts.jsonl")] == alerts
