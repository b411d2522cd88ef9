"""The audit of locked packages: what fails, what is explained, and what an offline machine gets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tools import audit
from tools.audit import Outcome, judge, parse

REPORT: Any = {
    "dependencies": [
        {"name": "good", "version": "1.0", "vulns": []},
        {"name": "bad", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]},
        {"name": "strange", "skip_reason": "Dependency not found"},
    ]
}


def test_advisory_fails_unless_it_is_explained() -> None:
    outcome = parse(REPORT)
    assert outcome == Outcome({"PYSEC-1": "bad 2.0, fixed in 2.1"}, 2, ["strange"])
    lines, is_failure = judge(outcome, {})
    assert is_failure
    assert lines == [
        "PYSEC-1: bad 2.0, fixed in 2.1",
        "NOT AUDITED: 1 packages: strange.",
        "2 packages audited.",
    ]
    assert not judge(outcome, {"PYSEC-1": "the function is not called"})[1]


def test_explanation_that_no_package_needs_fails() -> None:
    lines, is_failure = judge(Outcome({}, 5, []), {"PYSEC-1": "not called"})
    assert (lines[0][:40], is_failure) == ("PYSEC-1: explained in [tool.audit.ignore", True)


@pytest.mark.parametrize("outcome", [Outcome({}, 0, ["a", "b"]), Outcome({}, 0, [], "no route")])
def test_service_that_cannot_be_used_is_reported_and_no_failure(outcome: Outcome) -> None:
    (line,), is_failure = judge(outcome, {})
    assert line.startswith("NOT AUDITED: the service of advisories cannot be used here: ")
    assert not is_failure


def test_call_that_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert audit.audit(["a==1"]) == Outcome({}, 0, [], "exit code 1")
    (tmp_path / "pins.txt").write_text("# made by hand\ncertifi==1\n")
    assert audit.main([str(tmp_path / "pins.txt")]) == 0
