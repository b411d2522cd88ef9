"""The reward `llm_judge`: a language model rates, checks criteria, or compares responses."""

from titanrl.components.rewards.llm_judge.reward import LLMJudge

__all__ = ["LLMJudge"]
