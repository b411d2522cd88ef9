"""Generated component pages match the sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from titanrl.registry import component_class
from titanrl.registry.decode import fields_of
from titanrl.registry.docs import allowed, declarations, reads
from tools import pages
from tools.status import status_of, survey

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "components"
STALE = "is not what the sources say; run `make docs`"


def test_component_pages_are_up_to_date() -> None:
    made = pages.pages()
    assert {path.name for path in FOLDER.iterdir()} == made.keys(), STALE
    for name, text in made.items():
        assert (FOLDER / name).read_text() == text, f"docs/components/{name} {STALE}"


def test_links_of_the_component_pages_resolve() -> None:
    for name, text in pages.pages().items():
        for target, anchor in re.findall(r"\]\((?!https:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
            page = FOLDER / (target or name)
            assert page.exists(), f"{name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ `?(.*?)`?$", page.read_text(), flags=re.MULTILINE)
                assert anchor in [heading.casefold().replace(" ", "-") for heading in headings], anchor


def test_every_formula_and_table_of_a_page_is_markdown() -> None:
    for name, text in pages.pages().items():
        prose = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->", "", text, flags=re.DOTALL)
        assert "<" not in prose, f"{name}: GitHub takes < for HTML"
        for row in re.findall(r"^\|.*$", text, flags=re.MULTILINE):
            assert len(re.findall(r"(?<!\\)\|", row)) in (3, 4, 5), f"{name}: {row}"


def test_status_counts_values_refusals_and_laws() -> None:
    status = status_of("kl_controller", "linear")
    assert (status.values, status.refusals) == (1, 1)
    assert status.golden == "1 value and 1 refused table"
    assert status.laws == ("tests/laws/test_controller_laws.py",)
    assert status_of("loss", "of_my_own").golden == "none"


def test_survey_finds_tests_over_registered_names(tmp_path: Path) -> None:
    laws = tmp_path / "tests" / "laws"
    laws.mkdir(parents=True)
    (laws / "all_tables.py").write_text("def tables():\n    return names('filter')\n")
    (laws / "test_a.py").write_text("from tests.laws.all_tables import tables\n\nALL = tables()\n")
    (laws / "test_b.py").write_text("def test_it():\n    assert titanrl.names('filter')\n")
    (laws / "test_c.py").write_text("ALL = titanrl.names('kl')\n")
    coverage = survey(tmp_path, {"filter": ["x"]})
    assert coverage["golden"] == {"filter": {"x": [0, 0]}}
    covered = {kind: files for kind, files in coverage["laws"].items() if files}
    assert covered == {"filter": ["tests/laws/test_a.py"], "kl": ["tests/laws/test_c.py"]}


@pytest.mark.parametrize(
    ("kind", "name", "ranges"),
    [
        ("loss", "vespo", dict.fromkeys(("k_positive", "lambda_positive", "k_negative", "lambda_negative"))),
        ("reward", "overlong", {"max_length": "[1, inf)", "buffer": "[1, max_length]", "factor": "[0, inf)"}),
        ("loss", "ppo_clip", {"clip_low": "(0, 1)", "ratio_cap": "(1 + clip_high, inf)"}),
    ],
)
def test_ranges_are_those_of_the_fields(kind: str, name: str, ranges: dict[str, str | None]) -> None:
    keys = fields_of(component_class(kind, name))
    for key, interval in ranges.items():
        assert allowed(keys[key][1]).endswith(f" in {interval or '(0, inf)'}")


def test_reads_are_those_of_the_defaults() -> None:
    assert reads(component_class("loss", "reinforce")) == "advantage"
    assert reads(component_class("loss", "ppo_clip")) == "old_logprob, advantage (its keys may change that)"
    assert reads(component_class("advantage", "gdpo")) == "what its keys name"
    assert reads(component_class("advantage", "ema_baseline")).endswith("where the batch has them agent_id")


def test_declarations_are_those_of_the_class_or_of_its_defaults() -> None:
    assert declarations("loss", component_class("loss", "value")) == {"needs": "value"}
    assert declarations("loss", component_class("loss", "dpo")) == {
        "needs": "none (its keys may change that)",
        "paired": "True",
        "couples_step": "False (its keys may change that)",
    }
    assert declarations("advantage", component_class("advantage", "gdpo")) == {
        "scope": "(its keys may change that)"
    }
