"""Commands as a user types them; the training loop and the server are replaced by recorders."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import tomli
from typer.testing import CliRunner, Result

from titanrl import __version__
from titanrl.cli import app
from titanrl.config import load
from titanrl.config.engine_tables import Parallelism
from titanrl.models.mesh_checks import mesh_problems


def titanrl(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], env={**NO_LAUNCHER, **environment})


NO_LAUNCHER: dict[str, Any] = dict.fromkeys(
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_TASKS")
)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool, list[str]]]:
    """Replace training by a list of the requested experiments."""
    calls: list[tuple[Any, bool, list[str]]] = []
    loop = types.ModuleType("titanrl.training.run")
    loop.train = lambda experiment, resume, accept: calls.append((experiment, resume, accept))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "titanrl.training.run", loop)
    return calls


@pytest.mark.slow
def test_version_and_help_print() -> None:
    assert titanrl("--version").output.strip() == __version__
    for command in ("train", "check", "show", "components", "model", "export", "ablate", "serve"):
        assert command in titanrl("--help").output
        assert titanrl(command, "--help").exit_code == 0


def test_help_keeps_the_names_of_tables() -> None:
    assert "[prompts]" in titanrl("rft", "--help").output


def test_check_reports_valid_and_invalid_files(file: Path, tmp_path: Path) -> None:
    result = titanrl("check", file)
    assert result.exit_code == 0, result.output
    assert "lab.toml: OK" in result.output
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(file.read_text().replace("steps = 2", "stesp = 2"))
    result = titanrl("check", wrong, file, tmp_path / "none.toml")
    assert result.exit_code == 2
    assert "[loop] stesp is not a key, got 2; did you mean 'steps'?" in result.output
    assert "lab.toml: OK" in result.output
    assert "no such file" in result.output
    assert "Traceback" not in result.output


def test_check_takes_overrides(file: Path) -> None:
    assert "[loop] steps must be in [1, inf), got 0" in titanrl("check", file, "--set", "loop.steps=0").output


ABLATION = 'base = "lab.toml"\nmetric = "reward/mean"\n[vary]\nalgorithm.loss.clip_low = [0.1, {}]\n'


def test_check_reads_ablations_too(file: Path) -> None:
    study = file.with_name("study.toml")
    study.write_text(ABLATION.format(0.2))
    assert "study.toml: OK" in titanrl("check", study).output
    study.write_text(ABLATION.format(1.2))
    result = titanrl("check", study)
    assert result.exit_code == 2
    assert "clip_low must be in (0, 1), got 1.2. (from variant 'clip_low=1.2')" in result.output


def test_ablate_prints_commands_and_runs_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = file.with_name("study.toml")
    study.write_text(ABLATION.format(0.2))
    lines = titanrl("ablate", study, "--emit-commands", "--set", "loop.steps=3").output.splitlines()
    assert len(lines) == 10
    assert all(line.startswith("titanrl train ") and "--set=loop.steps=3" in line for line in lines)
    assert "#SBATCH --array=0-9" in titanrl("ablate", study, "--emit-slurm").output
    assert not (tmp_path / "runs").exists()


def test_ablate_reports_errors_of_all_files_before_running_any(file: Path) -> None:
    studies = [file.with_name(f"study{number}.toml") for number in (1, 2)]
    for study in studies:
        study.write_text(ABLATION.format(1.2))
    result = titanrl("ablate", *studies)
    assert result.exit_code == 2
    assert all(f"{study.name}: 1 mistake" in result.output for study in studies)


@pytest.mark.slow
def test_check_with_nproc_validates_the_mesh(file: Path) -> None:
    assert titanrl("check", file, "--nproc", 4).exit_code == 0
    result = titanrl("check", file, "--nproc", 3)
    assert result.exit_code == 2
    assert "times data-parallel ranks (3), got 8" in result.output
    tensor_parallel = ["--set", "parallelism.tensor_parallel_degree=2", "--nproc"]
    assert titanrl("check", file, *tensor_parallel, 4).exit_code == 0
    assert "must multiply to the 3 processes" in titanrl("check", file, *tensor_parallel, 3).output


def test_check_without_nproc_assumes_the_smallest_valid_mesh(file: Path) -> None:
    result = titanrl("check", file, "--set", "parallelism.tensor_parallel_degree=2")
    assert result.exit_code == 0, result.output
    assert "the largest of 2 ranks needs about" in result.output
    misfit = ["parallelism.data_parallel_shard_degree=4", "parallelism.expert_parallel_degree=3"]
    result = titanrl("check", file, *(f"--set={each}" for each in misfit))
    assert "expert_parallel_degree must divide the 4 ranks" in result.output


def test_check_reports_offloaded_memory(file: Path) -> None:
    here = titanrl("check", file).output
    weights = here.partition("reference: weights ")[2].partition(",")[0].strip()
    offloaded = titanrl("check", file, "--set", "reference.offload=true").output
    assert "CPU memory" not in here
    assert f"; offloaded to CPU memory, {weights}: reference: weights {weights}\n" in offloaded
    assert offloaded.count("reference: weights") == 1


@pytest.mark.parametrize(
    ("degrees", "ranks"),
    [
        ({}, 1),
        ({"tensor_parallel_degree": 2, "pipeline_parallel_degree": 3}, 6),
        ({"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 5}, 10),
        ({"expert_parallel_degree": 6, "tensor_parallel_degree": 4}, 12),
    ],
)
def test_least_ranks_is_the_smallest_valid_mesh(degrees: dict[str, int], ranks: int) -> None:
    mesh = Parallelism(**degrees)
    assert mesh.least_ranks == ranks
    assert [count for count in range(1, ranks + 1) if not mesh_problems(mesh, count)] == [ranks]


@pytest.mark.slow
def test_model_that_is_missing_or_too_short_is_found_before_the_run(file: Path) -> None:
    for command in ("check", "train"):
        result = titanrl(command, file, "--set", "model.path=models/nowhere")
        assert result.exit_code == 2
        assert "[model] path must be a model folder" in result.output
        assert "titanrl model get" in result.output
        result = titanrl(command, file, "--set", "training.seq_len=129")
        assert result.exit_code == 2
        assert "[training] seq_len must be <= 128" in result.output


def test_show_prints_a_file_that_is_the_experiment_and_the_dataflow(file: Path, tmp_path: Path) -> None:
    result = titanrl("show", file)
    assert result.exit_code == 0, result.output
    text, _, flow = result.output.partition("Dataflow of a step")
    resolved = tmp_path / "resolved.toml"
    resolved.write_text(text.rpartition("\n")[0])
    assert load(resolved) == load(file)
    for word in ("sample", "ref_logprob", "loss 'lab_loss'", "rewards.lab_match"):
        assert word in flow


@pytest.mark.slow
def test_show_schema_is_json_and_needs_no_file() -> None:
    schema = json.loads(titanrl("show", "--schema").output)
    assert "algorithm" in schema["properties"]
    assert titanrl("show").exit_code == 2


@pytest.mark.slow
def test_components_lists_kinds_names_and_one_in_full() -> None:
    everything = titanrl("components").output
    assert "ppo_clip" in everything
    assert "zero_variance" in everything
    assert "ppo_clip" not in titanrl("components", "kl").output
    one = titanrl("components", "loss", "ppo_clip").output
    for part in ("1707.06347", "clip_high", "0.2", "Reads: old_logprob, advantage", "ppo_clip.py"):
        assert part in one
    wrong = titanrl("components", "loss", "ppo_clp")
    assert wrong.exit_code == 2
    assert "did you mean 'ppo_clip'?" in wrong.output


def test_components_shows_those_of_an_import(tmp_path: Path) -> None:
    path = tmp_path / "cli_lab.py"
    path.write_text(
        "from dataclasses import dataclass\nfrom titanrl import register\n\n"
        "@register('loss', 'cli_lab_loss')\n@dataclass(frozen=True, kw_only=True)\n"
        "class Lab:\n    '''Returns nothing much.'''\n    width: float = 1.5\n    '''How wide.'''\n"
    )
    output = titanrl("components", "loss", "cli_lab_loss", "--import", path).output
    assert "Returns nothing much." in output
    assert "How wide." in output
    assert str(path) in output.replace("\n", "")


def test_train_passes_the_experiment_to_the_train_loop(
    file: Path, runs: list[tuple[Any, bool, list[str]]]
) -> None:
    result = titanrl("train", file, "--set", "loop.steps=3", "--resume", "--accept", "run.seed")
    assert result.exit_code == 0, result.output
    ((experiment, resume, accept),) = runs
    assert (experiment.loop.steps, resume, accept) == (3, True, ["run.seed"])


def test_train_with_nproc_starts_ranks_and_exits_with_their_code(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(
        "titanrl.cli.ranks.run_ranks", lambda number, words: started.append((number, words)) or 75
    )
    options = ["--nproc", 2, "--set", "loop.steps=3", "--resume", "--accept", "all"]
    result = titanrl("train", file, *options, OMP_NUM_THREADS="1")
    assert result.exit_code == 75
    assert started == [(2, ["train", str(file), "--set=loop.steps=3", "--resume", "--accept=all"])]


def test_train_under_a_launcher_is_one_rank_and_starts_nothing(
    file: Path, runs: list[tuple[Any, bool, list[str]]]
) -> None:
    rank = {"RANK": "1", "WORLD_SIZE": "2"}
    assert titanrl("train", file, **rank).exit_code == 0
    assert len(runs) == 1
    result = titanrl("train", file, "--nproc", 2, RANK="0", WORLD_SIZE="2")
    assert result.exit_code == 2
    assert "--nproc must not be given under a launcher" in result.output
    # Of several ranks with the same mistake one speaks.
    silent = titanrl("train", file, "--set", "loop.steps=0", **rank)
    assert silent.exit_code == 2
    assert silent.output == ""


def test_train_refuses_ranks_that_do_not_divide_the_groups(file: Path) -> None:
    result = titanrl("train", file, RANK="0", WORLD_SIZE="3")
    assert result.exit_code == 2
    assert "[loop] prompts_per_step must be a multiple" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pipeline", "r1.toml"], "'titanrl pipeline' was renamed to 'titanrl recipe'."),
        (["evaluate", "FILE", "--against", "run"], "'--against' was renamed to '--baseline'."),
        (["model", "get", "tiny", "--to=folder"], "'--to' was renamed to '--output'."),
        (["train", "FILE", "loop.steps=3"], "write `--set loop.steps=3` to override a key."),
        (["check", "FILE", "--nproc", "2", "loop.steps=3"], "write `--set loop.steps=3`"),
    ],
)
def test_old_spelling_names_the_new_one(file: Path, arguments: list[str], message: str) -> None:
    result = titanrl(*(file if each == "FILE" else each for each in arguments))
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_values_of_set_are_no_positional_arguments(
    file: Path, runs: list[tuple[Any, bool, list[str]]]
) -> None:
    assert titanrl("train", "--set", "loop.steps=3", file, "--set=loop.prompts_per_step=16").exit_code == 0
    assert runs[0][0].loop.steps == 3


def test_options_have_no_abbreviations(file: Path) -> None:
    result = titanrl("train", file, "--resum")
    assert result.exit_code == 2
    assert "No such option: --resum" in result.output


def test_model_get_of_an_unknown_name_lists_known_models() -> None:
    result = titanrl("model", "get", "smollm2-135")
    assert result.exit_code == 2
    assert "did you mean 'smollm2-135m'?" in result.output


def test_shown_file_states_every_default(file: Path) -> None:
    text = titanrl("show", file).output.partition("Dataflow")[0].rpartition("\n")[0]
    table = tomli.loads(text)
    assert table["optimizer"]["beta2"] == 0.95
    assert table["algorithm"]["loss"] == {
        "name": "lab_loss",
        "clip_low": 0.1,
        "clip_high": 0.2,
        "reads": ["old_logprob", "advantage"],
    }


def test_report_refuses_an_unsupported_file_suffix(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    result = titanrl("report", tmp_path, "--output", tmp_path / "page.docx")
    assert result.exit_code == 2
    assert "--output must end in one of .html, .png, .svg, .pdf, got" in result.output


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Replace serving by a list of the requested models."""
    calls: list[tuple[Any, Any, dict[str, Any]]] = []
    server = types.ModuleType("titanrl.serve.model")
    server.serve_model = lambda experiment, run, **keys: calls.append((experiment, run, keys))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "titanrl.serve.model", server)
    return calls


def test_serve_needs_no_parallelism_no_data_and_one_process(
    file: Path, tmp_path: Path, served: list[tuple[Any, Any, dict[str, Any]]]
) -> None:
    assert "[parallelism]" not in file.read_text()
    result = titanrl("serve", file, "--best-of", 4, "--reward", "right", "--port", 0)
    assert result.exit_code == 0, result.output
    gone = ["--set=parallelism.tensor_parallel_degree=2", "--set=prompts={name='jsonl', path='none.jsonl'}"]
    more = ["--set=sampler.max_response_tokens=9"]
    result = titanrl("serve", file, *gone, *more, RANK="0", TITANRL_API_KEY="secret")
    assert result.exit_code == 0, result.output
    (first, run, options), (second, _, with_key) = served
    assert (options["api_key"], with_key["api_key"]) == (None, "secret")
    assert (run, options["best_of"], options["reward"], options["port"]) == (None, 4, "right", 0)
    assert first.parallelism == second.parallelism == Parallelism()
    assert second.sampler.max_response_tokens == 9


@pytest.mark.slow
def test_serve_reports_settings_that_cannot_be_served(
    file: Path, tmp_path: Path, served: list[tuple[Any, Any, dict[str, Any]]]
) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ((file, "--model", tmp_path / "none"), "[model] path must be a model folder"),
        ((file, "--set=training.seq_len=4096"), "[training] seq_len must be <= 128"),
        ((tmp_path / "none.toml",), "no such file"),
        ((tmp_path / "empty",), "no such file"),
        ((file, "--api-key", ""), "--api-key must not be empty"),
        ((file, "--best-of", 0), "greater than or equal to 1"),
    ):
        result = titanrl("serve", *arguments)
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.output.split())
    assert served == []
