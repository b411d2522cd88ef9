"""[checkpoint] keep_best: the best checkpoint is written, kept, recorded and chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from titanrl.config.engine_tables import Checkpoint
from titanrl.engine import Engine
from titanrl.engine.restore import choose_checkpoint
from titanrl.errors import ConfigError

pytestmark = pytest.mark.slow

Make = Callable[..., Engine]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def start(make_engine: Make, folder: Path, **table: Any) -> Engine:
    settings = {"interval": 10, "keep_latest_k": 2, "keep_best": "eval/score"} | table
    return make_engine(checkpoints=folder, checkpoint=Checkpoint(**settings))


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "best.json").read_text()))


SCORES = {2: 0.5, 4: 0.7, 6: 0.7, 8: float("nan"), 10: 0.1, 20: 0.2, 30: 0.3}


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_best_checkpoint_outlives_newer_ones_and_a_resume(folder: Path, make_engine: Make, mode: str) -> None:
    engine = start(make_engine, folder, async_mode=mode)
    # A better value is written although no checkpoint is due; an equal one, NaN and other steps are not.
    saved = [step for step in range(1, 11) if engine.save(step, metrics=_metrics(SCORES.get(step)))]
    assert saved == [2, 4, 10]
    for step in (20, 30):
        assert engine.save(step, metrics=_metrics(SCORES[step]))
    engine.close()
    assert steps(folder) == [4, 20, 30]
    assert record(folder) == {"step": 4, "metric": "eval/score", "mode": "max", "value": 0.7}
    assert choose_checkpoint(folder, "best") == folder / "step-4"
    assert choose_checkpoint(folder) == folder / "step-30"
    again = start(make_engine, folder, async_mode=mode)
    assert again.load()
    assert again.save(40, metrics=_metrics(0.6))
    assert again.save(41, metrics=_metrics(0.71))
    again.close()
    assert steps(folder) == [40, 41]
    assert record(folder)["step"] == 41


def _metrics(score: float | None) -> dict[str, float]:
    return {"loss/total": 1.0} if score is None else {"loss/total": 1.0, "eval/score": score}


def test_smaller_is_better_with_mode_min(folder: Path, make_engine: Make) -> None:
    engine = start(make_engine, folder, keep_best="eval/loss", keep_best_mode="min")
    saved = [engine.save(step, metrics={"eval/loss": loss}) for step, loss in ((1, 3.0), (2, 3.5), (3, 2.0))]
    assert saved == [True, False, True]
    engine.close()
    assert record(folder) == {"step": 3, "metric": "eval/loss", "mode": "min", "value": 2.0}


def test_a_repeated_step_is_measured_anew(folder: Path, make_engine: Make) -> None:
    engine = start(make_engine, folder)
    assert engine.save(3, metrics=_metrics(0.9))
    assert engine.save(3, metrics=_metrics(0.4))
    assert not engine.save(4, metrics=_metrics(0.3))
    engine.close()
    assert record(folder)["value"] == 0.4


def test_another_metric_starts_a_new_record(folder: Path, make_engine: Make) -> None:
    engine = start(make_engine, folder)
    engine.save(3, metrics=_metrics(0.9))
    engine.close()
    engine = start(make_engine, folder, keep_best="eval/loss", keep_best_mode="min")
    assert engine.save(4, metrics={"eval/loss": 5.0})
    engine.close()
    assert record(folder)["metric"] == "eval/loss"


def test_damaged_or_missing_best_checkpoints_are_named(folder: Path, make_engine: Make) -> None:
    engine = start(make_engine, folder)
    engine.save(3, metrics=_metrics(0.9))
    engine.save(10)
    engine.close()
    (folder / "step-3" / "__0_0.distcp").unlink()
    with pytest.raises(ConfigError, match=r"step-3 cannot be used: __0_0.* is missing; choose --step 10,"):
        choose_checkpoint(folder, "best")
    (folder / "best.json").write_text('{"step": 3}')
    with pytest.raises(ConfigError, match=r"best\.json is damaged: 'metric'; remove it"):
        choose_checkpoint(folder, "best")


def test_a_metric_that_is_not_measured_is_refused(folder: Path, make_engine: Make) -> None:
    engine = start(make_engine, folder, keep_best="eval/scor")
    for check in (engine.require_metric, lambda metrics: engine.save(1, metrics=metrics)):
        with pytest.raises(ConfigError, match=r"keep_best 'eval/scor' is not measured .* mean 'eval/score'"):
            check({"eval/score": 0.5, "eval/num_prompts": 3.0})
    engine.require_metric({"loss/total": 1.0})
    engine.close()
