"""The 25 kinds of instructions of IFEval: each a function of the response and its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["CHECKS", "count_sentences", "follows", "loose_variants"]

Check = Callable[..., bool]
CHECKS: dict[str, Check] = {}
"""Instruction id -> its check, which gets the response and the instruction's arguments by name."""

WORD = re.compile(r"\w+")
HIGHLIGHT, BOLD = re.compile(r"\*[^\n*]*\*"), re.compile(r"\*\*[^\n*]*\*\*")
PLACEHOLDER = re.compile(r"\[[^\[\]\n]*\]")
FENCES = ("```json", "```Json", "```JSON", "```")
CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
MAX_WORD = 40
"""Characters before a mark in which an abbreviation is looked for."""
ENDS = re.compile(r"[.!?\u2026]+[\"'\u201d\u2019)\]*_]*(?=\s|$)|[\u3002\uff01\uff1f]+")
ABBREVIATIONS = frozenset(
    (
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "sr",
        "jr",
        "st",
        "vs",
        "e.g",
        "i.e",
        "etc",
        "inc",
        "ltd",
        "co",
        "no",
        "fig",
    )
)


def check(name: str) -> Callable[[Check], Check]:
    """Registers the check of an instruction id."""

    def add(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return add


def follows(name: str, response: str, arguments: Mapping[str, Any]) -> bool:
    """Returns whether a response follows one instruction; an empty response follows none.

    Args:
        name: instruction id, such as `punctuation:no_comma`.
        response: the text.
        arguments: arguments of the instruction; those that are None are left out.

    Raises:
        ValueError: unknown instruction, or missing, unknown or malformed arguments.
    """
    if name not in CHECKS:
        raise ValueError(f"has the unknown instruction {name!r}")
    given = {key: value for key, value in arguments.items() if value is not None}
    try:
        return bool(response.strip()) and CHECKS[name](response, **given)
    except (TypeError, AttributeError, ValueError) as error:
        text = str(error).replace(f"{CHECKS[name].__name__}() ", "")
        raise ValueError(f"has wrong arguments for {name!r}: {text}") from None


def loose_variants(response: str) -> list[str]:
    """Returns the eight forms of a response of which one must follow an instruction in the loose mode.

    The response without its first line, without its last, without both, and as it is; each also without
    asterisks.
    """
    lines = response.split("\n")
    texts = [lines, lines[1:], lines[:-1], lines[1:-1]]
    forms = [response, *("\n".join(part).strip() for part in texts[1:])]
    return [*forms, *(form.replace("*", "") for form in forms)]


def count_sentences(text: str) -> int:
    """Returns the number of sentences: ends are marks before white space, but not after an abbreviation."""
    count, start, previous = 0, 0, 0
    for match in ENDS.finditer(text):
        words = text[max(previous, match.start() - MAX_WORD) : match.start()].split()
        previous = match.end()
        if not words:
            continue
        last = words[-1].lower().lstrip("(\"'")
        if match[0].startswith(".") and (last in ABBREVIATIONS or (len(last) == 1 and last != "i")):
            continue
        count, start = count + 1, match.end()
    return count + bool(WORD.search(text, start))


def compares(count: int, relation: str, threshold: int) -> bool:
    """Returns whether a count is in the relation "less than" or "at least" to a threshold."""
    if relation not in ("less than", "at least"):
        raise ValueError(f"the relation must be 'less than' or 'at least', got {relation!r}")
    return count < int(threshold) if relation == "less than" else count >= int(threshold)


def language_of(text: str) -> str | None:
    """Returns the ISO 639-1 code of the text's language; None if it cannot be determined."""
    import langdetect

    # The detector samples; a fixed seed makes it a function of the text.
    langdetect.DetectorFactory.seed = 0
    try:
        return str(langdetect.detect(text))
    except langdetect.LangDetectException:
        return None


def parts(text: str, separator: str) -> list[str] | None:
    """Returns the parts between separators; None if one in the middle is empty."""
    pieces = re.split(separator, text)
    middle = pieces[1:-1]
    if not all(piece.strip() for piece in middle):
        return None
    return [piece for piece in pieces if piece.strip()]


# ------------------------------------------------------------------ keywords


@check("keywords:existence")
def _keywords(response: str, keywords: Sequence[str]) -> bool:
    text = response.casefold()
    return all(keyword.casefold() in text for keyword in keywords)


@check("keywords:frequency")
def _keyword_frequency(response: str, keyword: str, frequency: int, relation: str) -> bool:
    return compares(response.casefold().count(keyword.casefold().strip()), relation, frequency)


@check("keywords:forbidden_words")
def _forbidden_words(response: str, forbidden_words: Sequence[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", response, re.IGNORECASE) for word in forbidden_words)


@check("keywords:letter_frequency")
def _letter_frequency(response: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return compares(response.lower().count(letter.lower()), let_relation, let_frequency)


# ------------------------------------------------------------------ language and case


@check("language:response_language")
def _language(response: str, language: str) -> bool:
    return language_of(response) in (language, None)


@check("change_case:english_capital")
def _capital(response: str) -> bool:
    return response.isupper() and language_of(response) in ("en", None)


@check("change_case:english_lowercase")
def _lowercase(response: str) -> bool:
    return response.islower() and language_of(response) in ("en", None)


@check("change_case:capital_word_frequency")
def _capital_words(response: str, capital_frequency: int, capital_relation: str) -> bool:
    words = re.findall(r"[\w-]+(?:'\w+)?", response)
    return compares(sum(word.isupper() for word in words), capital_relation, capital_frequency)


# ------------------------------------------------------------------ lengths


@check("length_constraints:number_words")
def _number_words(response: str, num_words: int, relation: str) -> bool:
    return compares(len(WORD.findall(response)), relation, num_words)


@check("length_constraints:number_sentences")
def _number_sentences(response: str, num_sentences: int, relation: str) -> bool:
    return compares(count_sentences(response), relation, num_sentences)


@check("length_constraints:number_paragraphs")
def _number_paragraphs(response: str, num_paragraphs: int) -> bool:
    paragraphs = parts(response, r"\s?\*\*\*\s?")
    return paragraphs is not None and len(paragraphs) == int(num_paragraphs)


@check("length_constraints:nth_paragraph_first_word")
def _first_word(response: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = response.split("\n\n")
    count = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if not 1 <= int(nth_paragraph) <= count or count != int(num_paragraphs):
        return False
    words = paragraphs[int(nth_paragraph) - 1].split()
    if not words:
        return False
    word = re.split(r"[.,?!'\"]", words[0].lstrip("'").lstrip('"'))[0]
    return word.lower() == first_word.lower()


# ------------------------------------------------------------------ content and format


@check("detectable_content:number_placeholders")
def _placeholders(response: str, num_placeholders: int) -> bool:
    return len(PLACEHOLDER.findall(response)) >= int(num_placeholders)


@check("detectable_content:postscript")
def _postscript(response: str, postscript_marker: str) -> bool:
    forms = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    pattern = forms.get(postscript_marker, re.escape(postscript_marker.lower()))
    return re.search(pattern, response.lower()) is not None


@check("detectable_format:number_bullet_lists")
def _bullets(response: str, num_bullets: int) -> bool:
    lines = [line.lstrip() for line in response.split("\n")]
    stars = sum(len(line) > 1 and line[0] == "*" and line[1] != "*" for line in lines)
    return stars + sum(line.startswith("-") for line in lines) == int(num_bullets)


@check("detectable_format:constrained_response")
def _constrained(response: str) -> bool:
    return any(choice in response for choice in CHOICES)


@check("detectable_format:number_highlighted_sections")
def _highlights(response: str, num_highlights: int) -> bool:
    single = [text.strip("*").strip() for text in HIGHLIGHT.findall(response)]
    double = [text[2:-2].strip() for text in BOLD.findall(response)]
    return sum(map(bool, single + double)) >= int(num_highlights)


@check("detectable_format:multiple_sections")
def _sections(response: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d", response)) >= int(num_sections)


@check("detectable_format:json_format")
def _json(response: str) -> bool:
    text = response.strip()
    for fence in FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


@check("detectable_format:title")
def _title(response: str) -> bool:
    # From the first << to the last >> of a line.
    titles = (line[line.find("<<") : line.rfind(">>") + 2] for line in response.split("\n") if "<<" in line)
    return any(len(title) > 4 and title.lstrip("<").rstrip(">").strip() for title in titles)


# ------------------------------------------------------------------ combination, ends, punctuation


@check("combination:two_responses")
def _two_responses(response: str) -> bool:
    responses = parts(response, re.escape("******"))
    return responses is not None and len(responses) == 2 and responses[0].strip() != responses[1].strip()


@check("combination:repeat_prompt")
def _repeat_prompt(response: str, prompt_to_repeat: str) -> bool:
    return response.strip().lower().startswith(prompt_to_repeat.strip().lower())


@check("startend:end_checker")
def _end(response: str, end_phrase: str) -> bool:
    return response.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@check("startend:quotation")
def _quotation(response: str) -> bool:
    text = response.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


@check("punctuation:no_comma")
def _no_comma(response: str) -> bool:
    return "," not in response
