"""Compare the locked packages with known vulnerabilities, with pip-audit.

    python -m tools.audit requirements/cpu.txt

Fails if a package has an advisory that [tool.audit.ignore] in pyproject.toml does not explain, or if an
advisory is explained that no package has. If the service of advisories cannot be reached, or does not know a
package, that is reported and is no failure: an offline machine must be able to run the other checks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Outcome", "audit", "judge"]

ROOT = Path(__file__).parents[1]
SECONDS = 120
"""Time limit of a call of pip-audit."""
PROBES = ("certifi", "requests")
"""Packages that every service of advisories knows; without them, the others are not asked for."""


class Outcome(NamedTuple):
    """What pip-audit found."""

    vulnerable: dict[str, str]
    """Advisory -> package and version, the versions that fix it."""
    num_audited: int
    unknown: list[str]
    """Packages that the service does not know."""
    problem: str = ""
    """Why there is no result; "" if there is one."""


def audit(lines: Sequence[str]) -> Outcome:
    """Return what the service of advisories knows about exact versions.

    Args:
        lines: NAME==VERSION.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "-r", file.name, "--no-deps", "--disable-pip"]
        options = ["--progress-spinner", "off", "-f", "json"]
        try:
            result = subprocess.run(
                [*command, *options], capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome({}, 0, [], f"no result within {SECONDS} s")
    try:
        return parse(json.loads(result.stdout))
    except (ValueError, KeyError, TypeError):
        text = result.stderr.strip() or f"exit code {result.returncode}"
        return Outcome({}, 0, [], text.splitlines()[-1][:300])


def parse(report: Any) -> Outcome:
    """Return the outcome of a JSON report of pip-audit."""
    vulnerable: dict[str, str] = {}
    unknown: list[str] = []
    for package in report["dependencies"]:
        if "skip_reason" in package:
            unknown.append(package["name"])
        for advisory in package.get("vulns", ()):
            fixes = ", ".join(advisory.get("fix_versions", ())) or "no version yet"
            vulnerable[advisory["id"]] = f"{package['name']} {package['version']}, fixed in {fixes}"
    return Outcome(vulnerable, len(report["dependencies"]) - len(unknown), unknown)


def judge(outcome: Outcome, explained: dict[str, str]) -> tuple[list[str], bool]:
    """Return the lines of the report, and whether the check fails.

    Args:
        outcome: what pip-audit found.
        explained: advisory -> why it does not matter.
    """
    if outcome.problem or outcome.num_audited == 0:
        reason = outcome.problem or f"it knows none of {len(outcome.unknown)} packages"
        return [f"NOT AUDITED: the service of advisories cannot be used here: {reason}."], False
    lines = [f"{key}: {text}" for key, text in outcome.vulnerable.items() if key not in explained]
    if not outcome.unknown:  # Otherwise an explained advisory may be one of theirs.
        stale = explained.keys() - outcome.vulnerable.keys()
        lines += [f"{key}: explained in [tool.audit.ignore], but no package has it" for key in sorted(stale)]
    is_failure = bool(lines)
    if outcome.unknown:
        lines.append(f"NOT AUDITED: {len(outcome.unknown)} packages: {', '.join(outcome.unknown)}.")
    return [*lines, f"{outcome.num_audited} packages audited."], is_failure


def main(files: Sequence[str]) -> int:
    """Audit lock files and return the exit code."""
    texts = [line for file in files for line in Path(file).read_text().splitlines()]
    pins = sorted({line.strip() for line in texts if "==" in line and not line.startswith("#")})
    explained = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["audit"]["ignore"]
    outcome = audit([pin for pin in pins if pin.split("==")[0] in PROBES])
    if not outcome.problem and outcome.num_audited:
        outcome = audit(pins)
    lines, is_failure = judge(outcome, explained)
    print("\n".join(lines), file=sys.stderr)
    return int(is_failure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
