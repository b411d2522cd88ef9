"""How much memory an experiment needs, by the config.json of its models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from titanrl.config.experiment import Experiment

if TYPE_CHECKING:
    from titanrl.models.memory import MemoryEstimate

__all__ = ["memory"]


def memory(experiment: Experiment, world_size: int) -> list[MemoryEstimate]:
    """Returns the memory that the fullest of ``world_size`` ranks needs, part by part, without the sampler's.

    Args:
        experiment: one that ``verify`` finds nothing wrong with.
    """
    from titanrl.components.rewards.reward_model import RewardModel
    from titanrl.components.rewards.reward_model.scorer import num_parameters
    from titanrl.models.hf_config import HFConfig
    from titanrl.models.memory import BYTES, MemoryEstimate, Model, estimate_memory

    training, critic = experiment.training, experiment.critic
    trained = {"policy": (experiment.model.path, experiment.optimizer)}
    shares = critic is not None and critic.shared
    if critic is not None and not shares:
        trained["critic"] = (critic.path or experiment.model.path, critic.optimizer)
    models = [
        Model(
            name=name,
            config=HFConfig.read(path),
            is_value_model=name == "critic" or experiment.model.head == "value",
            has_critic=shares,
            dtype=training.dtype,
            optimizer=optimizer,
        )
        for name, (path, optimizer) in trained.items()
    ]
    for name in ("reference", "teacher"):
        role = getattr(experiment, name)
        if role is not None:
            config = HFConfig.read(role.path or experiment.model.path)
            models.append(
                Model(
                    name=name, config=config, is_value_model=False, dtype=role.dtype, optimizer=None,
                    offload=role.offload,
                )
            )  # fmt: skip
    rewards, passing = [], []
    for each in experiment.reward:
        reward = each.component
        if isinstance(reward, RewardModel) and reward.path is not None:
            size = num_parameters(reward.path) * BYTES[reward.dtype or "float32"]
            rewards.append(MemoryEstimate(f"{each.label}: weights", size, is_on_host=bool(reward.offload)))
            if reward.offload:
                passing.append(MemoryEstimate(f"{each.label}: weights while it scores", size))
    mesh, checkpoint = experiment.parallelism, experiment.activation_checkpoint
    return [*rewards, *estimate_memory(models, mesh, training, checkpoint, world_size, passing)]
