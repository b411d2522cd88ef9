"""The reward `function`: a Python function of the user's, by its dotted path."""

from titanrl.components.rewards.function.reward import Function

__all__ = ["Function"]
