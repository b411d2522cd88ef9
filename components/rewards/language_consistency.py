"""How much of the answer is written in the script of the wanted language."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from titanrl.components.rewards.text import texts
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["LanguageConsistency"]

SCRIPTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("en", "fr", "de", "es", "it", "pt"), frozenset({"LATIN"})),
    "zh": frozenset({"CJK"}),
    "ja": frozenset({"CJK", "HIRAGANA", "KATAKANA"}),
    "ko": frozenset({"HANGUL"}),
    "ru": frozenset({"CYRILLIC"}),
    "ar": frozenset({"ARABIC"}),
    "hi": frozenset({"DEVANAGARI"}),
    "el": frozenset({"GREEK"}),
    "he": frozenset({"HEBREW"}),
    "th": frozenset({"THAI"}),
}
CODE = re.compile(r"```.*?```|\$\$.*?\$\$|\$[^$]*\$|\\[A-Za-z]+", re.DOTALL)


@register("reward", "language_consistency")
@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageConsistency:
    r"""Returns the share of letters (Unicode categories L) in the language's script; no letters: 1.

    A letter's script is the first word of its Unicode name; `ja` accepts CJK, HIRAGANA and KATAKANA.
    strip_code first removes fenced blocks, `$...$`, `$$...$$` and `\commands`.

    Source: language consistency reward, arXiv 2501.12948 section 2.3.2. Deviation: letters, not words.
    """

    language: Literal[
        "en", "fr", "de", "es", "it", "pt", "zh", "ja", "ko", "ru", "ar", "hi", "el", "he", "th"
    ]
    """ISO 639-1 code; languages of one script are not told apart."""
    strip_code: bool = True
    """Whether code and formulas are left out."""
    in_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "response"),)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        """Returns [n] float32 in [0, 1]."""
        return torch.tensor([self._share(text) for text in texts(batch, "response")], dtype=torch.float32)

    def _share(self, text: str) -> float:
        counts = Counter(CODE.sub(" ", text) if self.strip_code else text)
        letters = {char: n for char, n in counts.items() if unicodedata.category(char).startswith("L")}
        total = sum(letters.values())
        if total == 0:
            return 1.0
        scripts = SCRIPTS[self.language]
        return sum(n for char, n in letters.items() if script(char) in scripts) / total


def script(char: str) -> str:
    """Returns the first word of the letter's Unicode name; empty for the nameless."""
    return unicodedata.name(char, "").partition(" ")[0]
