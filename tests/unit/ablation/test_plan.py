"""Ablation files as checked runs and commands; all errors are reported before a run starts."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
import tomli

from tests.unit.ablation.conftest import Ablation, Finish
from titanrl.ablation.commands import command, slurm_array
from titanrl.ablation.plan import is_ablation, outline, plan
from titanrl.ablation.settings import Settings
from titanrl.ablation.variants import variants
from titanrl.config import load
from titanrl.config.dump import to_table
from titanrl.errors import ConfigError


def test_runs_are_those_of_every_variant_and_seed(ablation: Ablation) -> None:
    planned = plan(ablation())
    assert [(run.variant, run.seed) for run in planned.runs[:3]] == [
        ("clip_high=0.2", 0),
        ("clip_high=0.28", 0),
        ("clip_high=0.2", 1),
    ]
    assert len(planned.runs) == 6
    last = planned.runs[-1]
    assert last.experiment.algorithm.loss.clip_high == 0.28  # type: ignore[attr-defined]
    assert last.experiment.run.seed == 2
    assert str(last.folder.path) == "runs/ablations/study/clip_high=0.28-seed2"
    assert str(planned.folder) == "runs/ablations/study"


def test_overrides_make_exactly_the_planned_experiment(ablation: Ablation) -> None:
    for run in plan(ablation(), ["loop.steps=7"]).runs:
        assert load(run.base, run.overrides) == run.experiment
        assert run.experiment.loop.steps == 7


def test_baseline_comes_first(ablation: Ablation) -> None:
    path = ablation(head='baseline = "clip_high=0.28"')
    assert plan(path).baseline == "clip_high=0.28"
    assert outline(path)[1][0].name == "clip_high=0.28"


def test_error_of_one_variant_names_the_variant(ablation: Ablation) -> None:
    path = ablation("[vary]\nalgorithm.loss.clip_low = [0.2, 1.5]\nloop.stesp = [4]\n")
    with pytest.raises(ConfigError) as caught:
        plan(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: 2 mistakes")
    assert "[loop] stesp is not a key, got 4; did you mean 'steps'?" in text
    assert text.count("stesp is not a key") == 1
    assert "clip_low must be in (0, 1), got 1.5. (from variant 'clip_low=1.5')" in text


def test_error_of_the_base_file_is_reported_once_with_its_file(ablation: Ablation, file: Path) -> None:
    file.write_text(file.read_text().replace("steps = 2", "steps = 0"))
    message = r"\[loop\] steps must be in \[1, inf\), got 0. \(from .*lab.toml\)"
    with pytest.raises(ConfigError, match=message):
        plan(ablation())


def test_errors_of_the_ablation_file_are_reported_together(ablation: Ablation) -> None:
    path = ablation("[vary]\nloop.steps = 3\n", head="seed = 4\nwindow = 0\n[budgets]\nsteps = [5, 2]")
    with pytest.raises(ConfigError) as caught:
        plan(path)
    text = str(caught.value)
    assert "seed is not a key, got 4; did you mean 'seeds'?" in text
    assert "[budgets] steps must be above 0 and increasing, got [5, 2]" in text
    assert "[vary] loop.steps must be an array" in text


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ('baseline = "clip_hihg=0.28"', "baseline must be .* did you mean 'clip_high=0.28'"),
        ('[[expect]]\nvariant = "x"\ndirection = "lower"', "expect.0.variant must be the name of a variant"),
        ('[[expect]]\nvariant = "x"\ndirection = "same"', "margin must be above 0 with direction 'same'"),
        ('metrics = ["evla/score"]', "metric must be named stage/quantity"),
        ('metrics = ["eval/score"]', r"\[evaluation\] is missing, but a metric"),
        ("[budgets]\nsteps = [1, 3]", r"\[budgets\] steps must be <= \[loop\] steps = 2, got \[3\]"),
    ],
)
def test_inconsistent_keys_are_refused(ablation: Ablation, head: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(ablation(head=head))


def test_missing_base_is_reported_once(ablation: Ablation, file: Path) -> None:
    path = ablation()
    file.unlink()
    with pytest.raises(ConfigError, match=r"1 mistake\n.*no such file"):
        plan(path)


def test_state_of_a_run_follows_its_folder(ablation: Ablation, finish: Finish) -> None:
    run = plan(ablation()).runs[0]
    assert run.state() == "absent"
    finish(run, [{"step": 1}])
    assert run.state() == "unfinished"
    finish(run, [{"step": 1}, {"step": 2}])
    assert run.state() == "finished"
    run.folder.metrics.write_text('{"step": 1}\n{"step": 2, "reward/me')
    assert (run.state(), run.steps_done()) == ("unfinished", 1)


def test_run_with_other_settings_is_refused(ablation: Ablation, finish: Finish) -> None:
    path = ablation()
    finish(plan(path).runs[0], [{"step": 2}])
    with pytest.raises(ConfigError, match=r"with other settings \(loop.steps was 2 and is 9\); remove"):
        plan(path, ["loop.steps=9"]).runs[0].state()


def test_run_resumed_with_other_settings_for_some_steps_is_refused(
    ablation: Ablation, finish: Finish
) -> None:
    run = plan(ablation()).runs[0]
    finish(run, [{"step": 2}])
    resolved = to_table(run.experiment)
    changed = {**resolved, "optimizer": {**resolved["optimizer"], "lr": 0.5}}
    for step, table in enumerate((resolved, changed, resolved)):
        run.folder.begin_session(table, first_step=step)
    with pytest.raises(ConfigError, match=r"settings after step 1 \(optimizer\.lr was 0\.5"):
        run.state()


def test_run_saved_before_a_key_existed_is_still_valid(ablation: Ablation, finish: Finish) -> None:
    run = plan(ablation()).runs[0]
    finish(run, [{"step": 2}])
    lines = run.folder.config.read_text().splitlines()
    run.folder.config.write_text(
        "\n".join(line for line in lines if not line.startswith("max_resample_attempts"))
    )
    assert run.state() == "finished"


def test_ablation_files_are_distinguished_from_experiments(ablation: Ablation, file: Path) -> None:
    assert is_ablation(ablation())
    assert not is_ablation(file)
    assert not is_ablation(file.with_name("none.toml"))


def test_printed_commands_run_the_plan(ablation: Ablation, finish: Finish) -> None:
    runs = plan(ablation()).runs
    finish(runs[1], [{"step": 1}])
    words = shlex.split(command(runs[1], nproc=2))
    assert words[:2] == ["titanrl", "train"]
    assert words[-2:] == ["--nproc=2", "--resume"]
    overrides = [word.removeprefix("--set=") for word in words if word.startswith("--set=")]
    assert load(words[2], overrides) == runs[1].experiment


def test_slurm_script_has_one_task_per_run(ablation: Ablation, tmp_path: Path) -> None:
    runs = plan(
        ablation('[vary]\nalgorithm.loss.clip_high = [0.2, 0.28]\nprompts.dataset = ["it\'s"]\n')
    ).runs
    script = tmp_path / "job.sh"
    script.write_text(slurm_array("study", runs, nproc=2))
    assert "#SBATCH --array=0-5\n" in script.read_text()
    assert "#SBATCH --ntasks-per-node=2\n" in script.read_text()
    # srun and titanrl are replaced by what prints the words they are given.
    (tmp_path / "srun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    environment = {"PATH": path, "SLURM_ARRAY_TASK_ID": "3"}
    result = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=True)
    words = result.stdout.splitlines()
    assert words == shlex.split(command(runs[3]))
    assert 'prompts.dataset="it\'s"' in words[4]


def test_docs_page_names_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ablations.md").read_text()
    table = page.partition("## Keys")[2].partition("## ")[0]
    named = re.findall(r"`([^`]+)`", "".join(row.split("|")[1] for row in re.findall(r"^\| .*", table, re.M)))
    assert {name.strip("[]") for name in named} == {field.name for field in fields(Settings)}


def test_docs_examples_vary_a_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ablations.md").read_text()
    first, second = (tomli.loads(text) for text in re.findall(r"```toml\n(.*?)```", page, re.S))
    assert len(variants(first["vary"], None)) == 4
    assert [each.name for each in variants(None, second["variant"])] == ["grpo", "no_kl", "dr_grpo"]
