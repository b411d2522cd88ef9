"""An estimate of the memory that an experiment needs, from the config.json of its models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from titanrl.config.experiment import Experiment

if TYPE_CHECKING:
    from titanrl.models.memory import MemoryEstimate

__all__ = ["estimate_rank_memory"]


def estimate_rank_memory(experiment: Experiment, world_size: int) -> list[MemoryEstimate]:
    """Return the memory that the rank with the highest demand needs, part by part, without the sampler.

    Args:
        experiment: an experiment for which ``preflight`` returns no problems.
        world_size: number of processes.
    """
    from titanrl.components.rewards.process_reward_model import ProcessRewardModel
    from titanrl.components.rewards.reward_model import RewardModel
    from titanrl.components.rewards.reward_model.scorer import num_parameters
    from titanrl.models.memory import BYTES, MemoryEstimate, Model, estimate_memory
    from titanrl.models.read_config import read_config

    training, critic = experiment.training, experiment.critic
    trained = {"policy": (experiment.model.path, experiment.optimizer)}
    has_shared_critic = critic is not None and critic.shared
    if critic is not None and not has_shared_critic:
        trained["critic"] = (critic.path or experiment.model.path, critic.optimizer)
    models = [
        Model(
            name=name,
            config=read_config(path),
            is_value_model=name == "critic" or experiment.model.head == "value",
            has_critic=has_shared_critic,
            head_dtype=experiment.model.head_dtype,
            dtype=training.dtype,
            optimizer=optimizer,
        )
        for name, (path, optimizer) in trained.items()
    ]
    for name in ("reference", "teacher"):
        role = getattr(experiment, name)
        if role is not None:
            config = read_config(role.path or experiment.model.path)
            models.append(
                Model(
                    name=name,
                    config=config,
                    is_value_model=False,
                    head_dtype=experiment.model.head_dtype,
                    dtype=role.dtype,
                    optimizer=None,
                    offload=role.offload,
                )
            )
    rewards, temporary = [], []
    for each in experiment.reward:
        reward = each.component
        if isinstance(reward, RewardModel | ProcessRewardModel) and reward.path is not None:
            size = num_parameters(reward.path) * BYTES[reward.dtype or "float32"]
            rewards.append(MemoryEstimate(f"{each.label}: weights", size, is_on_host=bool(reward.offload)))
            if reward.offload:
                temporary.append(MemoryEstimate(f"{each.label}: weights while it scores", size))
    mesh, checkpoint = experiment.parallelism, experiment.activation_checkpoint
    return [*rewards, *estimate_memory(models, mesh, training, checkpoint, world_size, temporary)]
