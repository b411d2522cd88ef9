"""Verifiable instructions: each kind is followed by one text and not by another."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tensordict import TensorDict

import titanrl
from titanrl.components.rewards.ifeval.checks import CHECKS, count_sentences, follows, loose_variants

SPANISH = "El sol brilla mucho en la ciudad, y los niños juegan en la plaza hasta la noche."
ENGLISH = "this is a short sentence about the weather in london and it is written in english"
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["sun", "C++"]}, "The SUN and c++", "The sun"),
    ("keywords:frequency", {"keyword": "a b", "frequency": 2, "relation": "at least"}, "A b, a b", "a b"),
    ("keywords:frequency", {"keyword": "x", "frequency": 2, "relation": "less than"}, "x", "x x"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "category", "my Cat!"),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 2, "let_relation": "at least"}, "Ee", "e"),
    ("language:response_language", {"language": "es"}, SPANISH, ENGLISH),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        "A b. C?",
        "Go. B b! C c.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n***\n***\nb"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "one two-three", "one two"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        'First this.\n\n"then, that."',
        "Then this.\n\nNow that.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] and [date]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\n P. S. more", "Bye. PS more"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "p.p.s x", "p.s. x"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n  - b", "* a\n**b**"),
    ("detectable_format:constrained_response", {}, "Well. My answer is maybe.", "My answer is perhaps."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b**", "*a* and **"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na\nSection two",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "<< >> text"),
    ("combination:two_responses", {}, "one\n******\ntwo", "one\n******\none"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "say it. Yes", "Yes. Say it."),
    ("startend:end_checker", {"end_phrase": "The end."}, 'x "the end."', "The end. x"),
    ("startend:quotation", {}, ' "a" ', '"'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "A BIG x",
        "Big A",
    ),
    ("change_case:english_capital", {}, ENGLISH.upper(), ENGLISH),
    ("change_case:english_lowercase", {}, ENGLISH, SPANISH.lower()),
    ("punctuation:no_comma", {}, "a; b", "a, b"),
]


def batch(responses: list[str], columns: list[dict[str, Any]]) -> TensorDict:
    return TensorDict({"text": {"response": responses, "columns": columns}}, batch_size=[len(responses)])


def test_there_are_25_kinds_of_instructions_and_each_has_a_case() -> None:
    assert len(CHECKS) == 25
    assert {name for name, *_ in CASES} == set(CHECKS)


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), CASES)
def test_instruction_is_followed(name: str, arguments: dict[str, Any], good: str, bad: str) -> None:
    other = {"unused": None}
    assert follows(name, good, arguments | other)
    assert not follows(name, bad, arguments | other)
    assert not follows(name, " \n", arguments)


def test_sentences_end_at_marks_but_not_after_abbreviations_and_in_numbers() -> None:
    assert count_sentences('Dr. Smith paid 3.50 dollars, i.e. less. Why? He said "No!" and left') == 4
    assert count_sentences("你好。再见！") == 2
    assert count_sentences("") == count_sentences(" ... ") == 0


def test_loose_mode_accepts_a_frame_and_asterisks_around_the_response() -> None:
    text = 'Sure, here it is:\n**"quoted"**\nHope it helps, bye'
    assert '"quoted"' in loose_variants(text)
    row = {"instruction_id_list": ["startend:quotation", "punctuation:no_comma"], "kwargs": [{}, {}]}
    rows = batch([text], [row])
    assert titanrl.build("reward", {"name": "ifeval"}).scores(rows) == [0.0]
    assert titanrl.build("reward", {"name": "ifeval", "mode": "loose"}).scores(rows) == [1.0]


def test_columns_may_be_nested_json_and_a_fraction_counts() -> None:
    arguments = [{}, {"num_words": 2, "relation": "at least", "keyword": None}]
    names = ["punctuation:no_comma", "length_constraints:number_words"]
    rows = batch(["word"], [{"truth": {"ids": json.dumps(names), "how": json.dumps(arguments)}}])
    keys = {"name": "ifeval", "instructions": "truth.ids", "arguments": "truth.how"}
    reward = titanrl.build("reward", {**keys, "score": "fraction"})
    assert reward.in_columns == ("truth.ids", "truth.how")
    assert reward(rows).tolist() == [0.5]
    assert titanrl.build("reward", keys)(rows).tolist() == [0.0]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({}, "the column 'instruction_id_list' must be a list of instruction ids, got None"),
        ({"instruction_id_list": ["a:b"]}, "the column 'kwargs' must be a list of 1 mappings, one per"),
        ({"instruction_id_list": ["a:b"], "kwargs": [{}]}, "the row has the unknown instruction 'a:b'"),
        (
            {"instruction_id_list": ["startend:end_checker"], "kwargs": [{}]},
            "the row has wrong arguments for 'startend:end_checker': .*'end_phrase'",
        ),
        (
            {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"x": 1}]},
            "the row has wrong arguments for 'punctuation:no_comma': .*'x'",
        ),
        (
            {
                "instruction_id_list": ["length_constraints:number_words"],
                "kwargs": [{"num_words": 1, "relation": "around"}],
            },
            "the relation must be 'less than' or 'at least', got 'around'",
        ),
    ],
)
def test_row_without_its_instructions_fails(columns: dict[str, Any], reason: str) -> None:
    good = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    failed, scored = titanrl.build("reward", {"name": "ifeval"}).scores(batch(["x", "x"], [columns, good]))
    assert scored == 1.0
    assert isinstance(failed, str)
    assert re.search(reason, failed), failed


def test_long_texts_are_checked_in_no_time() -> None:
    for unit in ("*", "[", "\n", " ", "<<", "-\n", ". ", "p. "):
        for name, arguments, _, _ in CASES:
            if not name.startswith(("language", "change_case:english")):
                follows(name, unit * 20_000, arguments)
