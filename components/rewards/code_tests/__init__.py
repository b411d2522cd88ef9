"""The reward `code_tests`: the fraction of tests that a generated program passes."""

from titanrl.components.rewards.code_tests.reward import CodeTests, extract_program, grade

__all__ = ["CodeTests", "extract_program", "grade"]
