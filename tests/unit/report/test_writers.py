"""Writers of metrics, read back by the tools' own readers."""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from titanrl.config.report_tables import Report
from titanrl.errors import ConfigError
from titanrl.report.alerts import Alert
from titanrl.report.folder import RunFolder
from titanrl.report.prometheus import Prometheus
from titanrl.report.writers import open_writers

TOML = '[run]\nseed = 3\n[optimizer]\nlr = 1e-5\n[algorithm.loss]\nname = "gspo"\n'


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text(TOML)
    return folder


def write(folder: RunFolder, settings: Report, *, first_step: int = 0, steps: int = 3) -> None:
    writers = open_writers(folder, settings, first_step=first_step)
    for step in range(first_step, steps):
        for writer in writers:
            writer.scalars(step, {"reward/mean": step / 4, "eval/score": 0.5})
            writer.samples(step, [{"prompt": "2 + 2", "response": "four", "reward": 1.0}])
    for writer in writers:
        writer.alert(steps - 1, Alert("kl", 7.0, 5.0, "the policy left"))
        writer.close()


def test_tensorboard_has_scalars_a_layout_texts_and_settings(folder: RunFolder) -> None:
    write(folder, Report())
    board = EventAccumulator(str(folder.tensorboard))
    board.Reload()
    assert [event.value for event in board.Scalars("reward/mean")] == [0.0, 0.25, 0.5]
    assert {"samples/text_summary", "experiment/text_summary", "alerts/kl/text_summary"} <= set(
        board.Tags()["tensors"]
    )
    (event,) = board.Tensors("custom_scalars__config__")
    score = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0]).category[0].chart[0]
    assert (score.title[:14], score.margin.series[0].value) == ("held-out score", "eval/score")
    content = board.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["optimizer.lr"].number_value == 1e-5
    assert settings["algorithm.loss.name"].string_value == "gspo"
    assert board.Scalars("result/eval/score")[0].value == 0.5


def test_resumed_run_writes_its_later_steps_once(folder: RunFolder) -> None:
    write(folder, Report())
    write(folder, Report(), first_step=2, steps=4)
    steps = [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()]
    assert steps == [0, 1, 2, 3]
    board = EventAccumulator(str(folder.tensorboard))
    board.Reload()
    assert [event.step for event in board.Scalars("reward/mean")] == [0, 1, 2, 3]


@pytest.mark.slow
def test_wandb_logs_config_and_metrics_and_continues_after_resume(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb offline mode writes the data that it would send to a file."""
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = Report(tensorboard=False, trackers=("wandb",), project="lab")
    runs, numbers = [], []
    for first, end in ((0, 3), (3, 4)):
        write(folder, settings, first_step=first, steps=end)
        (file,) = folder.path.glob("wandb/offline-run-*/*.wandb")
        for record in whole(file, wandb_internal_pb2.Record):
            if record.HasField("run"):
                runs.append((record.run.project, record.run.display_name, record.run.run_id))
            named = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            numbers += [float(named["reward/mean"])] if "reward/mean" in named else []
        shutil.rmtree(folder.path / "wandb")  # Two of one second would share a folder.
    assert numbers == [0.0, 0.25, 0.5, 0.75]
    assert {run[:2] for run in runs} == {("lab", "run")}
    assert len({run[2] for run in runs}) == 1


def whole(file: Path, record: Any) -> list[Any]:
    """Return the records of a .wandb file, which a wandb process completes after the run has ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        complete = [record.FromString(data) for data in records(file.read_bytes())]
        if complete and complete[-1].HasField("exit"):
            return complete
        time.sleep(0.1)
    raise AssertionError(f"{file} has no last record after a minute: {complete[-1:]}")


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: LevelDB's log, where a record may continue in the next block."""
    block, place, whole = 32 * 1024, 7, b""
    while place + 7 <= len(data):
        if block - place % block < 7:  # Too little for a header: padding.
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # Full, or last of several.
            yield whole
            whole = b""


def test_trackio_logs_config_and_metrics_and_continues_after_resume(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # Read when it is imported.
    trackio = pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    settings = Report(tensorboard=False, trackers=("trackio",), project="lab")
    for first, end in ((0, 3), (3, 4)):
        write(folder, settings, first_step=first, steps=end)
    (run,) = trackio.Api().runs("lab")
    assert run.name.startswith("run-")
    assert run.config["optimizer"] == {"lr": 1e-5}
    lines = SQLiteStorage.get_logs("lab", run=run.name)
    numbers = {line["step"]: line["reward/mean"] for line in lines if "reward/mean" in line}
    assert numbers == {0: 0.0, 1: 0.25, 2: 0.5, 3: 0.75}
    alerts = {line["step"]: line["alerts/kl"] for line in lines if "alerts/kl" in line}
    assert alerts == {2: 7.0, 3: 7.0}
    assert list((tmp_path / "trackio").glob("lab*.db"))


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    return number


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def test_prometheus_exports_the_metrics_of_the_last_step(folder: RunFolder, port: int) -> None:
    settings = Report(tensorboard=False, prometheus_port=port)
    writers = open_writers(folder, settings)
    try:
        for step in (1, 2):
            for writer in writers:
                writer.scalars(step, {"reward/mean": step / 4, "sample/response_tokens_p95": 9.0})
        text = scraped(port)
        assert 'titanrl_reward_mean{run="run"} 0.5\n' in text
        assert 'titanrl_sample_response_tokens_p95{run="run"} 9.0\n' in text
        assert 'titanrl_step{run="run"} 2.0\n' in text
        with pytest.raises(ConfigError, match=r"\[report\] prometheus_port must be a free port"):
            open_writers(folder, settings)
    finally:
        for writer in writers:
            writer.close()


def test_prometheus_exports_alerts_with_the_metrics_of_their_step(port: int) -> None:
    """The validation before training is recorded before its alerts, a step after them."""
    writer = Prometheus(port, "run")
    shown = []
    try:
        writer.scalars(0, {"eval/score": 0.5})
        writer.alert(0, Alert("entropy", 0.1, 0.2, ""))
        shown.append(scraped(port))
        writer.alert(1, Alert("kl", 7.0, 5.0, ""))
        writer.alert(1, Alert("clip_fraction", 0.9, 0.5, ""))
        shown.append(scraped(port))
        for step in (1, 2):
            writer.scalars(step, {"reward/mean": 0.5})
            shown.append(scraped(port))
    finally:
        writer.close()
    names = ("step", "alert_entropy", "alert_kl", "alert_clip_fraction")
    values = [[re.findall(rf'titanrl_{name}{{run="run"}} (.*)\n', text) for name in names] for text in shown]
    before = [["0.0"], ["0.1"], [], []]
    assert values == [before, before, [["1.0"], [], ["7.0"], ["0.9"]], [["2.0"], [], [], []]]
