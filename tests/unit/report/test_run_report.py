"""Report page of a run: its content, and its rendering in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from titanrl.algorithm.dataflow import Node
from titanrl.protocols.batch import key_name
from titanrl.report.dataflow_plot import dataflow_plot
from titanrl.report.figures import Line, curves
from titanrl.report.html import number, script_json
from titanrl.report.jsonl import JsonLines
from titanrl.report.panels import other_panels, sections
from titanrl.report.record import RunRecord, flattened, read_runs
from titanrl.report.run_report import write_report
from titanrl.report.samples import MAX_SAMPLES, sample_browser

pytestmark = pytest.mark.slow

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FILE = """
[run]
seed = {seed}
[model]
path = "models/tiny"
[prompts]
name = "jsonl"
path = "prompts.jsonl"
[sampler]
name = "torch"
[[reward]]
name = "repetition"
[[reward]]
name = "format_regex"
label = "short"
pattern = ".{{0,4}}"
[algorithm.advantage]
name = "grpo"
[algorithm.loss]
name = "ppo_clip"
[algorithm.aggregation]
name = "token_mean"
[loop]
steps = 4
prompts_per_step = 2
"""


def a_run(folder: Path, seed: int = 0, answer: str = "four") -> Path:
    """Write a run of three of four steps; the middle one has a non-finite metric."""
    metrics, samples = JsonLines(folder / "metrics.jsonl"), JsonLines(folder / "samples.jsonl")
    (folder / "experiment.toml").write_text(FILE.format(seed=seed))
    metrics.write({"step": 0, "eval/score": 0.1, "eval/score_low": 0.05, "eval/score_high": 0.2})
    for step in range(1, 4):
        times = {"time/sample_seconds": 3.0, "time/update_seconds": 1.0, "time/step_seconds": 4.0}
        rewards = {"reward/mean": step / 4, "reward/repetition": 0.5, "reward/short": step / 2}
        kl = float("nan") if step == 2 else 0.1
        metrics.write({"step": step, **times, **rewards, "kl/value": kl, "sample/resample_attempts": 0.0})
        tokens = {"text": ["fou", "r"], "advantage": [1.0, -0.5], "logprob": [-0.1, None]}
        row = {"prompt": "2 + 2", "response": answer, "reward": step / 4, "finish_reason": "stop"}
        samples.write({"step": step, **row, "per_token": tokens})
    metrics.close()
    samples.close()
    return folder


def test_report_is_one_file_with_the_data_of_its_runs(tmp_path: Path) -> None:
    first, second = a_run(tmp_path / "a"), a_run(tmp_path / "b", seed=7)
    alerts = JsonLines(first / "alerts.jsonl")
    alerts.write({"step": 2, "name": "kl_high", "message": "KL is <huge>"})
    alerts.close()
    text = write_report([first, second], tmp_path / "out" / "page.html").read_text()
    plain = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"(src|href)=[\"']?(https?:|//)", plain)
    for fact in ("grpo + ppo_clip + token_mean", "3 of 4", "0.100 (0.050 to 0.200)", "KL is &lt;huge&gt;"):
        assert fact in plain
    assert '<th class="number">step</th><th>name</th>' in plain  # right like the numbers below it
    assert "75.0%" in plain  # the sampler's share of the time
    assert re.search(r"<td>run.seed</td>\s*<td class=\"number\">0</td><td class=\"number\">7</td>", plain)
    for key in ("old_logprob", "rewards.short", "loss_weight"):
        assert f'class="key">{key}</text>' in plain


class Embedded(HTMLParser):
    """Parser of the JSON scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.documents: list[Any] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag == "script" and ("type", "application/json") in attrs

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.documents.append(json.loads(data))
            self.inside = False


def test_response_text_is_escaped_in_the_report(tmp_path: Path) -> None:
    answer = "</script><script>alert(1)</script> & <!-- <b>"
    samples = Embedded(sample_browser([RunRecord.read(a_run(tmp_path / "a", answer=answer))])).documents[0]
    assert samples[0]["response"] == answer
    assert json.loads(script_json({"x": "<\u2028é"})) == {"x": "<\u2028é"}


def test_long_runs_keep_samples_of_evenly_spread_steps(tmp_path: Path) -> None:
    run = RunRecord(name="a", path=tmp_path, table={}, metrics=[])
    run.samples.extend({"step": i // 10, "prompt": "", "response": ""} for i in range(30_000))
    samples = Embedded(sample_browser([run])).documents[0]
    assert len(Embedded(sample_browser([replace(run, samples=run.samples[:120])])).documents[0]) == 120
    steps = sorted({row["step"] for row in samples})
    assert MAX_SAMPLES * 0.9 < len(samples) <= MAX_SAMPLES
    assert (steps[0], steps[-1]) == (0, 2999)
    assert {later - earlier for earlier, later in pairwise(steps)} <= {20, 21}


def test_offline_run_has_a_report(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    lines = [{"step": 1, "eval/loss": 0.5, "eval/accuracy": 0.75, "loss/total": 0.6, "data/rows": 2.0}]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    row = {"step": 1, "prompt": "2 + 2", "response": "4", "tokens": 12, "loss_tokens": 2, "group": 0}
    (folder / "samples.jsonl").write_text(f"{json.dumps(row)}\n")
    text = write_report([folder], tmp_path / "page.html").read_text()
    assert "loss 0.5000, accuracy 0.750" in text
    assert [each for each in Embedded(text).documents if isinstance(each, list)] == [[{"run": "a", **row}]]
    titles = [each for each in ("training loss", "held-out accuracy", "training reward") if each in text]
    assert titles == ["training loss", "held-out accuracy"]


def test_score_is_shown_with_its_interval(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    line = {"step": 1, "eval/score": 0.5, "eval/tokens": 7.0, "eval/score_low": 0.25, "eval/score_high": 0.75}
    (folder / "metrics.jsonl").write_text(f"{json.dumps(line)}\n")
    text = write_report([folder], tmp_path / "page.html").read_text()
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", text)
    assert heads[heads.index("score") :][:4] == ["score", "score low", "score high", "tokens"]


def test_alerts_of_one_run_do_not_name_it(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    alerts = JsonLines(folder / "alerts.jsonl")
    alerts.write({"step": 2, "name": "kl_high", "message": "KL is huge"})
    alerts.close()
    text = write_report([folder], tmp_path / "page.html").read_text()
    assert '<tr><th class="number">step</th><th>name</th><th>message</th></tr>' in text


def test_curve_that_stays_at_zero_is_above_the_axis() -> None:
    shown = curves("clipped", [Line("a", "#0072b2", [1, 2], [0.0, 0.0])]).y_range
    assert shown.start < 0 < shown.end


def test_each_metric_is_in_one_panel(tmp_path: Path) -> None:
    run = RunRecord.read(a_run(tmp_path / "a"))
    placed = [key for panels in sections([run]).values() for panel in panels for key in panel.keys]
    others = [key for panel in other_panels([run]) for key in panel.keys]
    assert len(placed) == len(set(placed))
    assert {"reward/repetition", "reward/short", "eval/score"} <= set(placed)
    assert others == ["sample/resample_attempts"]


def test_series_skips_steps_without_a_value(tmp_path: Path) -> None:
    run = RunRecord.read(a_run(tmp_path / "a"))
    assert run.series("kl/value", "reward/mean") == ([1, 3], [[0.1, 0.1], [0.25, 0.75]])


def test_runs_of_one_name_are_distinguished_by_their_paths(tmp_path: Path) -> None:
    runs = read_runs([a_run(tmp_path / "x" / "a"), a_run(tmp_path / "y" / "a"), a_run(tmp_path / "b")])
    assert [run.name for run in runs] == [str(tmp_path / "x" / "a"), str(tmp_path / "y" / "a"), "b"]


def test_files_flatten_to_dotted_keys() -> None:
    table = {"a": {"b": 1, "c": [1, 2]}, "d": [{"e": "x"}, {"e": "y"}]}
    assert flattened(table) == {"a.b": 1, "a.c": "[1, 2]", "d.0.e": "x", "d.1.e": "y"}


def test_table_numbers_are_short() -> None:
    assert [number(each) for each in (0.123456, 12345678, None, 1e-9, "<")] == [
        "0.1235",
        "12345678",
        "–",
        "1e-09",
        "<",
    ]


def test_long_key_names_end_before_the_first_node() -> None:
    key = ("rewards", "language_consistency_of_the_answer")
    flow = [Node("score", "reward", "reward.0", (), (key,)), Node("score", "weighted sum", "", (key,))]
    svg = dataflow_plot(flow)
    (first, _) = sorted(float(x) for x in re.findall(r'<circle cx="([\d.]+)"', svg))
    assert first - 5 > 7.3 * len(key_name(key))  # a letter of 12 pixels, 7.2 wide


@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [1400, 500])
def test_browser_renders_the_report_without_errors(tmp_path: Path, width: int) -> None:
    page = write_report([a_run(tmp_path / "a"), a_run(tmp_path / "b")], tmp_path / "page.html")
    probe = """<script>
      const faults = [];
      let begun = false;
      addEventListener("error", (event) => faults.push(event.message));
      addEventListener("unhandledrejection", (event) => faults.push(String(event.reason)));
      const wait = () => {
        const all = document.querySelectorAll(".figure:not(details *)");
        const drawn = [...all].filter((each) => each.dataset.rendered && each.offsetHeight > 100);
        if (drawn.length < all.length && !faults.length) return setTimeout(wait, 100);
        const set = (name, value) => {
          const form = document.querySelector("form.filters");
          form.elements[name].value = value;
          form.dispatchEvent(new Event("input"));
          return document.querySelectorAll(".samples article").length;
        };
        const named = () => document.querySelector(".samples .facts").textContent.includes("run ");
        const before = named();
        document.querySelector(".legend button[data-name=b]").click();
        const lines = Bokeh.documents.flatMap((each) => each.roots()).flatMap((each) => each.renderers ?? []);
        document.body.dataset.probe = JSON.stringify({
          faults, begun, figures: all.length, drawn: drawn.length,
          spill: document.body.scrollWidth - innerWidth,
          articles: [set("first", 2), set("run", "a"), set("low", 0.6), set("finish_reason", "stop")],
          named: [before, named()],
          coloured: document.querySelectorAll(".samples pre span[style]").length,
          hidden: lines.filter((each) => each.name === "b").map((each) => each.visible),
        });
      };
      addEventListener("load", () => {
        begun = [...document.querySelectorAll(".figure:not(details *)")].every((each) => each.id);
        wait();
      });
    </script></head>"""
    page.write_text(page.read_text().replace("</head>", probe, 1))
    assert BROWSER is not None
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=60000",
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={width},9000",
        "--dump-dom",
        page.as_uri(),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'data-probe="([^"]*)"', dom)
    assert found is not None, dom[-2000:]
    seen = json.loads(found[1].replace("&quot;", '"'))
    assert seen["faults"] == []
    assert seen["figures"] == seen["drawn"] >= 5
    assert seen["begun"], "figures in view are drawn when the page is loaded"
    assert seen["spill"] <= 0
    assert seen["articles"] == [4, 2, 1, 1]
    assert seen["named"] == [True, False], "of one chosen run its name says nothing"
    assert seen["coloured"] == 2
    assert set(seen["hidden"]) == {False}
