"""The reward `ifeval`: verifiable instructions that a response follows."""

from titanrl.components.rewards.ifeval.reward import IFEval

__all__ = ["IFEval"]
