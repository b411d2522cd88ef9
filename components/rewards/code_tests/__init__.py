"""The reward `code_tests`: the share of tests that a generated program passes."""

from titanrl.components.rewards.code_tests.reward import CodeTests, grade, program_of

__all__ = ["CodeTests", "grade", "program_of"]
