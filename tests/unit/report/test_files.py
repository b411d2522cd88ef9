"""Files of a run survive interruptions and resumes."""

from __future__ import annotations

import json

import pytest

from titanrl.errors import ConfigError
from titanrl.report.curves import PANELS, plot
from titanrl.report.folder import RunFolder
from titanrl.report.jsonl import BLOCK, JsonLines, last_line, read_jsonl
from titanrl.report.metrics import read_metrics


def test_resumed_file_moves_repeated_steps_and_an_incomplete_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    for step in range(5):
        lines.write({"step": step, "x": step / 2})
    lines.close()
    path.write_text(path.read_text() + '{"step": 5, "x"')
    resumed = JsonLines(path, first_step=3)
    resumed.write({"step": 3, "x": 9.0})
    resumed.close()
    assert [(line["step"], line["x"]) for line in read_jsonl(path)] == [
        (0, 0.0),
        (1, 0.5),
        (2, 1.0),
        (3, 9.0),
    ]


@pytest.mark.parametrize("torn", ["", '{"step": 3, "x"', '{"step": 3, "x": "\u00e9'])
@pytest.mark.parametrize("size", [1, BLOCK - 9, BLOCK, 3 * BLOCK])
def test_last_line_is_found_from_the_end_of_the_file(tmp_path, torn, size):
    path = tmp_path / "metrics.jsonl"
    # A broken beginning, which nothing that reads the end alone can see.
    lines = "{broken\n" + "".join(json.dumps({"step": step, "x": "é" * size}) + "\n" for step in (1, 2))
    path.write_bytes((lines + torn).encode()[: -1 if "\u00e9" in torn else None])
    last = last_line(path)
    assert last is not None
    assert (last["step"], len(last["x"])) == (2, size)


@pytest.mark.parametrize("text", ["", "\n", '{"step"'])
def test_file_without_a_complete_line_has_no_last_line(tmp_path, text):
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    assert last_line(path) is None


def test_non_finite_numbers_become_null(tmp_path):
    lines = JsonLines(tmp_path / "m.jsonl")
    lines.write({"step": 0, "x": float("nan"), "y": float("inf")})
    lines.close()
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {"step": 0, "x": None, "y": None}


def test_run_identity_holds_config_versions_and_seed(tmp_path):
    folder = RunFolder.claim(tmp_path, "run")
    folder.write_experiment({"run": {"seed": 3}}, seed=3)
    assert folder.config.read_text() == "[run]\nseed = 3\n"
    assert json.loads(folder.identity.read_text()) == {"name": "run", "number": 1}
    versions = json.loads((folder.path / "versions.json").read_text())
    assert versions["seed"] == 3
    assert versions["torch"].startswith("2.")


@pytest.mark.slow
def test_curves_overlay_runs_and_refuse_a_folder_without_metrics(tmp_path):
    for name in ("a", "b"):
        lines = JsonLines(tmp_path / name / "metrics.jsonl")
        lines.write({"step": 0, "eval/score": 0.1, "eval/score_low": 0.05, "eval/score_high": 0.2})
        for step in range(1, 4):
            lines.write({"step": step, "reward/mean": step / 4, "loss/entropy": None})
        lines.close()
    figure = plot([tmp_path / "a", tmp_path / "b"], tmp_path / "out" / "curves.png")
    assert figure.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"holds no metrics\.jsonl"):
        plot([tmp_path], tmp_path / "x.png")


@pytest.mark.slow
def test_curves_have_no_panel_without_values(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    def titles(recorded):
        lines = JsonLines(tmp_path / "metrics.jsonl", first_step=0)
        lines.write({"step": 1, "loss/entropy": None} | dict.fromkeys(recorded, 0.5))
        lines.close()
        saved = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, *_: saved.append(figure))
        plot([tmp_path], tmp_path / "curves.png")
        return [axis.get_title(loc="left") for axis in saved[0].axes if axis.get_visible()]

    assert titles([]) == []
    assert titles(["update/grad_norm"]) == ["gradient norm"]
    four = ["reward/mean", "loss/total", "kl/value", "update/grad_norm", "loss/margin"]
    assert titles(four) == ["training reward", "margin", "KL to the reference policy, nats", "gradient norm"]
    keys = [key for key, _ in PANELS if key != "eval/score"]
    assert len(titles(keys)) == 6


def test_metrics_of_earlier_names_have_their_current_names(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "sample/logprob_gap": 0.1, "eval/majority_of_8": 0.5, "reward/mean": 1.0}\n'
        '{"step": 2, "sample/logprob_diff": 0.2, "eval/maj_at_8": 0.6}\n'
    )
    assert list(read_metrics(path)) == [
        {"step": 1, "sample/logprob_diff": 0.1, "eval/maj_at_8": 0.5, "reward/mean": 1.0},
        {"step": 2, "sample/logprob_diff": 0.2, "eval/maj_at_8": 0.6},
    ]
