"""Trains for hundreds of steps and measures whether memory, descriptors, threads and time per step grow.

    python -m tools.soak online --steps 300
    python -m tools.soak offline --steps 300

``online`` is GRPO on the tiny model with every stage: KL in the loss to a reference, rewards, validations,
checkpoints and samples. ``offline`` is supervised training with validations. The processes of the run are
sampled while it works, and each quantity is fitted by a line over the steps after the first tenth. A
quantity grows if the lower end of the slope's 95% interval, over all steps, exceeds its tolerance.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from titanrl.models import tiny

ROOT = Path(__file__).parents[1]
COMMON = """
[run]
folder = "{folder}/runs"
name = "soak"
[model]
path = "{folder}/model"
[evaluation]
interval = 25
num_prompts = 4
[training]
seq_len = 128
mixed_precision_param = "float32"
[optimizer]
lr = 1e-4
[checkpoint]
interval = 20
keep_latest_k = 2
[report]
progress = false
"""
FILES = {
    "online": """
base = "{root}/experiments/algorithms/grpo.toml"
[reference]
[algorithm.kl]
name = "k3"
coefficient = 0.01
[prompts]
name = "reasoning_gym"
dataset = "chain_sum"
size = 500
[sampler]
name = "torch"
max_response_tokens = 8
[[reward]]
name = "repetition"
n = 1
[[reward]]
name = "math_answer"
[loop]
steps = {steps}
prompts_per_step = 4
samples_per_prompt = 4
[evaluation.prompts]
name = "reasoning_gym"
dataset = "chain_sum"
size = 4
seed = 1
""",
    "offline": """
base = "{root}/experiments/algorithms/sft.toml"
[data]
name = "dataset"
path = "{root}/tests/experiments/data/messages.jsonl"
format = "messages"
[loop]
steps = {steps}
prompts_per_step = 4
[evaluation.data]
name = "dataset"
path = "{root}/tests/experiments/data/messages.jsonl"
format = "messages"
""",
}
TOLERANCES = {
    "memory, MiB": 0.03,
    "file descriptors": 0.02,
    "threads": 0.02,
    "child processes": 0.02,
    "seconds per step": 0.2,
}
"""Quantity -> growth over the whole run, as a share of its mean, up to which it counts as flat."""


class Growth(NamedTuple):
    """The growth of a quantity over a run."""

    mean: float
    total: float
    """Growth over the whole run by the fitted line."""
    margin: float
    """Half width of its 95% interval."""

    def exceeds(self, tolerance: float) -> bool:
        """Whether the growth is larger than this share of the mean, beyond chance."""
        return self.total - self.margin > tolerance * self.mean


def growth(steps: Sequence[float], values: Sequence[float]) -> Growth:
    """Returns the growth of ``values`` over the range of ``steps`` by least squares.

    Args:
        steps: step of each value, at least three different ones.
        values: of the same length.
    """
    x, y = np.asarray(steps, float), np.asarray(values, float)
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - slope * x - intercept
    error = math.sqrt(float((residual**2).sum()) / max(len(x) - 2, 1) / float(((x - x.mean()) ** 2).sum()))
    span = float(x.max() - x.min())
    return Growth(float(y.mean()), float(slope) * span, 1.96 * error * span)


def measure(kind: str, num_steps: int, folder: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Runs an experiment and returns quantity -> (steps, values).

    Raises:
        SystemExit: the run failed.
    """
    tiny.create(folder / "model", scale=0.3)
    file = folder / "soak.toml"
    text = FILES[kind] + COMMON
    if kind == "online":  # Its table of held-out prompts follows the table that COMMON begins.
        head, _, held_out = FILES[kind].partition("[evaluation.prompts]")
        text = head + COMMON + "[evaluation.prompts]" + held_out
    else:
        head, _, held_out = FILES[kind].partition("[evaluation.data]")
        text = head + COMMON.replace("num_prompts = 4", "num_prompts = 5") + "[evaluation.data]" + held_out
    file.write_text(text.format(root=ROOT, folder=folder, steps=num_steps))
    metrics = folder / "runs" / "soak" / "metrics.jsonl"
    series: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in TOLERANCES}
    with (folder / "console.txt").open("w") as console:
        process = subprocess.Popen(
            [sys.executable, "-m", "titanrl", "train", str(file)], stdout=console, stderr=console
        )
        seen = 0
        while process.poll() is None:
            time.sleep(0.1)
            rows = _rows(metrics)
            if len(rows) > seen:
                seen = len(rows)
                for name, value in _resources(process.pid).items():
                    series[name][0].append(rows[-1]["step"])
                    series[name][1].append(value)
    if process.returncode:
        sys.exit((folder / "console.txt").read_text())
    timed = [row for row in _rows(metrics) if "time/update_seconds" in row]
    # Validations and checkpoints belong to some steps only.
    parts = ("sample", "data", "score", "estimate", "update", "sync")
    seconds = [sum(row.get(f"time/{part}_seconds", 0.0) for part in parts) for row in timed]
    series["seconds per step"] = ([row["step"] for row in timed], seconds)
    return series


def _rows(metrics: Path) -> list[dict[str, float]]:
    if not metrics.exists():
        return []
    complete = metrics.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in complete.splitlines()]


def _resources(pid: int) -> dict[str, float]:
    """Returns what a process and its descendants hold."""
    found = dict.fromkeys(("memory, MiB", "file descriptors", "threads", "child processes"), 0.0)
    try:
        main = psutil.Process(pid)
        processes = [main, *main.children(recursive=True)]
    except psutil.NoSuchProcess:
        return {}
    found["child processes"] = len(processes) - 1.0
    for process in processes:
        try:
            with process.oneshot():
                found["memory, MiB"] += process.memory_info().rss / 2**20
                found["file descriptors"] += process.num_fds()
                found["threads"] += process.num_threads()
        except psutil.NoSuchProcess:
            continue
    return found


def report(series: dict[str, tuple[list[float], list[float]]], num_steps: int) -> list[str]:
    """Prints a table and returns the quantities that grow."""
    growing = []
    print(f"{'quantity':18} {'mean':>9} {'growth':>9} {'95%':>18}  verdict")
    for name, (steps, values) in series.items():
        kept = [(step, value) for step, value in zip(steps, values, strict=True) if step > num_steps / 10]
        each = growth(*zip(*kept, strict=True))
        grows = each.exceeds(TOLERANCES[name])
        growing += [name] * grows
        interval = f"{each.total - each.margin:+.3g} to {each.total + each.margin:+.3g}"
        verdict = "grows" if grows else "flat"
        print(f"{name:18} {each.mean:9.4g} {each.total:+9.3g} {interval:>18}  {verdict}")
    return growing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", choices=FILES)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        series = measure(arguments.kind, arguments.steps, Path(folder))
    if growing := report(series, arguments.steps):
        sys.exit(f"grows over {arguments.steps} steps: {', '.join(growing)}")


if __name__ == "__main__":
    main()
