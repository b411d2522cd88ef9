"""The reward `reward_model`: the score of a trained reward model."""

from titanrl.components.rewards.reward_model.reward import RewardModel

__all__ = ["RewardModel"]
