"""What only the machine knows: is the model there and long enough, is all installed, do ranks fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from titanrl.config.experiment import Experiment
from titanrl.config.load import load
from titanrl.errors import ConfigError, Problem, TrainingError
from titanrl.preflight.environment import missing_requirements

__all__ = ["load_checked", "preflight"]


def load_checked(file: Path, overrides: Sequence[str] = (), world_size: int | None = None) -> Experiment:
    """Returns the experiment of a file that nothing keeps from running here.

    Args:
        overrides: ``a.b.c=value`` each, laid over it. world_size: as for ``preflight``.

    Raises:
        ConfigError: with every mistake.
    """
    experiment = load(file, overrides)
    if problems := preflight(experiment, world_size):
        raise ConfigError(problems, file=str(file))
    return experiment


def preflight(experiment: Experiment, world_size: int | None = None) -> list[Problem]:
    """Returns what keeps a right experiment from running here.

    Args:
        world_size: processes that will run it; None: not known yet, so the fewest that its degrees fit.
    """
    return [
        *_models(experiment),
        *_tokenizers(experiment),
        *_reward_models(experiment),
        *missing_requirements(experiment),
        *_files(experiment),
        *_sampler(experiment, world_size),
        *_meshes(experiment, world_size),
    ]


def _folders(experiment: Experiment) -> dict[str, str]:
    """Returns the folder of each model by its table; those that share the policy's are left out."""
    folders = {"model": experiment.model.path}
    if experiment.reference is not None and experiment.reference.path is not None:
        folders["reference"] = experiment.reference.path
    if experiment.teacher is not None:
        folders["teacher"] = experiment.teacher.path
    if experiment.critic is not None and experiment.critic.path is not None:
        folders["critic"] = experiment.critic.path
    return folders


def _models(experiment: Experiment) -> list[Problem]:
    from titanrl.models import inspect
    from titanrl.models.hf_config import HFConfig

    problems, infos = [], {}
    for table, path in _folders(experiment).items():
        try:
            infos[table] = inspect(path)
            HFConfig.read(path)
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


def _tokenizers(experiment: Experiment) -> list[Problem]:
    """Returns a Problem for a frozen model that reads ids otherwise than the policy writes them."""
    from titanrl.models import vocabulary

    problems = []
    for name in ("reference", "teacher", "critic"):
        path = getattr(getattr(experiment, name), "path", None)
        if path is None or path == experiment.model.path:
            continue
        try:
            ours, theirs = vocabulary(experiment.model.path), vocabulary(path)
        except ConfigError:
            continue  # What is wrong with the folder has been said.
        differing = sorted(ours.items() ^ theirs.items(), key=lambda each: each[1])
        if differing:
            token, number = differing[0]
            text = (
                f"must have the model's tokenizer: they differ in {token!r} (id {number}); use such a model."
            )
            problems.append(Problem(name, text, "path"))
    return problems


def _reward_models(experiment: Experiment) -> list[Problem]:
    """Returns a Problem for a reward model that is not there, or cannot read the policy's answers."""
    from titanrl.components.rewards.reward_model import RewardModel
    from titanrl.components.rewards.reward_model.scorer import fingerprint
    from titanrl.models import vocabulary

    chosen = [
        (f"reward.{i}", each.component)
        for i, each in enumerate(experiment.reward)
        if isinstance(each.component, RewardModel)
    ]
    try:
        ours = fingerprint(vocabulary(experiment.model.path)) if chosen else ""
    except ConfigError:
        return []  # What is wrong with the folder has been said.
    problems, seq_len = [], experiment.training.seq_len
    for table, reward in chosen:
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
            text = "must have the model's tokenizer, as it reads token ids; use such a reward model."
            problems.append(Problem(table, text, key))
    return problems


def _files(experiment: Experiment) -> list[Problem]:
    """Returns a Problem for each file of rows that isn't there; a hub's can only be tried."""
    paths = {table: str(getattr(source, "path", "")) for table, source in experiment.sources().items()}
    return [
        Problem(table, f"must be a file, got {path!r}, which does not exist; check the path.", "path")
        for table, path in paths.items()
        if Path(path).suffix in (".jsonl", ".json", ".parquet") and not Path(path).is_file()
    ]


def _sampler(experiment: Experiment, world_size: int | None) -> list[Problem]:
    """Returns what the sampler itself says against the model or the processes."""
    from titanrl.models.hf_config import HFConfig

    problems = getattr(experiment.sampler, "problems", None)
    if problems is None:
        return []
    path = experiment.model.path
    try:
        HFConfig.read(path)
    except ConfigError:
        return []  # What is wrong with the folder has been said.
    return [Problem("sampler", text, key) for key, text in problems(path, world_size)]


def _meshes(experiment: Experiment, world_size: int | None) -> list[Problem]:
    """Returns what keeps the degrees from fitting each other, the processes, the models and the groups."""
    from titanrl.models.hf_config import HFConfig
    from titanrl.models.mesh_checks import mesh_problems, model_problems, nearest

    loop, mesh = experiment.loop, experiment.parallelism
    world_size = world_size or mesh.least_ranks
    if problems := mesh_problems(mesh, world_size):
        return problems
    for folder in dict.fromkeys(_folders(experiment).values()):
        try:
            problems = model_problems(HFConfig.read(folder), mesh, folder)
        except ConfigError:
            continue  # What is wrong with the folder has been said.
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
