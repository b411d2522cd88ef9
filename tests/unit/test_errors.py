"""Suggestions, intervals, and how mistakes read."""

from __future__ import annotations

from itertools import product

from titanrl.errors import ConfigError, Problem, closest_matches, did_you_mean


def neighbours(word: str, letters: str) -> set[str]:
    """Every word one insertion, deletion, replacement or swap away, by trying them all."""
    found = {word[:i] + letter + word[i:] for i in range(len(word) + 1) for letter in letters}
    for i in range(len(word)):
        found.add(word[:i] + word[i + 1 :])
        found |= {word[:i] + letter + word[i + 1 :] for letter in letters}
        if i + 1 < len(word):
            found.add(word[:i] + word[i + 1] + word[i] + word[i + 2 :])
    return found


def test_words_at_edit_distance_one_are_all_matches() -> None:
    words = ["".join(each) for size in range(1, 5) for each in product("abc", repeat=size)]
    for word in words[:40]:
        expected = sorted(neighbours(word, "abc") & set(words) - {word})
        assert [each for each in closest_matches(word, words) if each != word] == expected


def test_similar_words_match_if_none_is_at_edit_distance_one() -> None:
    assert closest_matches("ppo", ["cpo", "ppo_clip", "sft"]) == ["ppo_clip", "cpo"]
    assert closest_matches("temprature_", ["temperature", "top_k"]) == ["temperature"]
    assert closest_matches("zzz", ["temperature", "top_k"]) == []
    assert closest_matches("ADAMW", ["AdamW", "SGD"]) == ["AdamW"]


def test_several_equally_close_names_are_all_suggested() -> None:
    assert did_you_mean("k9", ["k1", "k2", "abs"]) == "; did you mean 'k1' or 'k2'?"
    assert did_you_mean("nothing like it", ["k1"]) == ""


def test_errors_show_table_key_and_origin() -> None:
    problem = Problem("loss", "must be a number, got 'x'.", "clip", "base.toml")
    assert str(problem) == "[loss] clip must be a number, got 'x'. (from base.toml)"
    assert str(problem.under("algorithm")).startswith("[algorithm.loss] clip must")
    assert str(Problem("", "is missing.", "model").under("run")) == "[run] model is missing."
    assert str(Problem("loop", "is missing.")) == "[loop] is missing."
    report = str(ConfigError([problem, problem], file="a.toml"))
    assert report.splitlines()[0] == "a.toml: 2 mistakes"
    assert len(report.splitlines()) == 3


def test_errors_escape_control_characters_of_keys() -> None:
    assert str(Problem("a\0", "is wrong.", "\x1b[2J")) == "['a\\x00'] '\\x1b[2J' is wrong."
    assert str(Problem("loss", "is wrong.", "é")) == "[loss] é is wrong."
