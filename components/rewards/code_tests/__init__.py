"""The reward `code_tests`: the fraction of tests that a generated program passes, in a sandbox."""

from titanrl.components.rewards.code_tests.grading import extract_program, grade
from titanrl.components.rewards.code_tests.reward import CodeTests

__all__ = ["CodeTests", "extract_program", "grade"]
