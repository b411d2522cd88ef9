"""Reference answers that a reward cannot read, counted over a source of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from titanrl.protocols import ReadsReferences

if TYPE_CHECKING:
    from titanrl.config.tables import Reward

__all__ = ["Unreadable", "unreadable_references"]

MAX_SHOWN, MAX_CHARACTERS = 3, 60


class Unreadable(NamedTuple):
    """The prompts on which a reward scores no response, because it cannot read the reference answer."""

    num_prompts: int
    text: str
    """The reward, the number of prompts, and the first references with the reasons."""


def unreadable_references(
    table: str, references: Mapping[str, int], rewards: Sequence[Reward]
) -> list[Unreadable]:
    """Return the unreadable reference answers of each reward that has some.

    Args:
        table: table of the source of prompts.
        references: reference answer -> number of prompts that have it.
        rewards: the [[reward]] tables.
    """
    found, texts = [], list(references)
    for reward in rewards:
        if not isinstance(reward.component, ReadsReferences):
            continue
        reasons = reward.component.unreadable_references(texts)
        bad = [(text, reason) for text, reason in zip(texts, reasons, strict=True) if reason is not None]
        if bad:
            count = sum(references[text] for text, _ in bad)
            examples = "; ".join(f"{_shown(text)}: {reason}" for text, reason in bad[:MAX_SHOWN])
            more = f"; and {len(bad) - MAX_SHOWN} other references" if len(bad) > MAX_SHOWN else ""
            text = (
                f"[{table}] {count:,} of {sum(references.values()):,} prompts have a reference answer that "
                f"the reward {reward.label!r} cannot read; no response to them is correct. {examples}{more}."
            )
            found.append(Unreadable(count, text))
    return found


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 3] + "...")
