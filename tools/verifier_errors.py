"""Errors of math verifiers on pairs with a known truth: the table of docs/rewards.md.

``python -m tools.verifier_errors`` grades the pairs of ``tests/unit/rewards/math_pairs.jsonl`` with the
reward ``math_answer`` and with math-verify alone. ``--wrong`` also prints each pair that one of them gets
wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from titanrl.components.rewards.math_answer import grade

__all__ = ["GRADERS", "PAIRS"]

PAIRS = Path(__file__).parents[1] / "tests" / "unit" / "rewards" / "math_pairs.jsonl"


def math_verify_alone(response: str, reference: str) -> float:
    """Grades as math-verify's documentation says: the reference answer between dollar signs."""
    from math_verify import parse, verify

    return float(verify(parse(f"${reference}$"), parse(response)))


GRADERS: dict[str, Callable[[str, str], float]] = {"math_answer": grade, "math-verify": math_verify_alone}
"""Name of a verifier -> the function that grades a response by a reference answer."""


def table(pairs: list[dict[str, Any]], verdicts: dict[str, list[float]]) -> list[str]:
    """Returns the lines of a table: errors by style, in both directions.

    Args:
        pairs: lines of the file.
        verdicts: name of a verifier -> its score of each pair.
    """
    cells = [f"{name}: {what}" for name in verdicts for what in ("refused", "accepted", "error rate")]
    lines = [f"| style | pairs | {' | '.join(cells)} |", f"|{'---|' * (2 + len(cells))}"]
    styles = list(dict.fromkeys(pair["style"] for pair in pairs))
    for style in (*styles, "all"):
        rows = [row for row, pair in enumerate(pairs) if style in (pair["style"], "all")]
        cells = []
        for scores in verdicts.values():
            refused = sum(pairs[row]["equivalent"] and scores[row] == 0 for row in rows)
            accepted = sum(not pairs[row]["equivalent"] and scores[row] == 1 for row in rows)
            cells += [str(refused), str(accepted), f"{(refused + accepted) / len(rows):.1%}"]
        lines.append(f"| {style} | {len(rows)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wrong", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    pairs = [json.loads(line) for line in PAIRS.read_text("ascii").splitlines()]
    verdicts = {
        name: [grader(pair["response"], pair["reference"]) for pair in pairs]
        for name, grader in GRADERS.items()
    }
    print("\n".join(table(pairs, verdicts)))
    if arguments.wrong:
        for name, scores in verdicts.items():
            for pair, score in zip(pairs, scores, strict=True):
                if score != pair["equivalent"]:
                    print(f"{name}: {json.dumps(pair)}")


if __name__ == "__main__":
    main()
