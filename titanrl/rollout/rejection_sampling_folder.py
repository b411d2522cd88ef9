"""The output folder of rejection sampling: selected rows, progress and statistics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from titanrl.config.dump import difference, to_table
from titanrl.config.load import load
from titanrl.errors import ConfigError
from titanrl.report.folder import write_atomic
from titanrl.report.jsonl import JsonLines, read_jsonl
from titanrl.rollout.generator import ScoredResponse
from titanrl.rollout.selection import Selection, identity

__all__ = ["RFTFolder"]

INDEX = "prompt_index"
"""Key of every line: index of its prompt in the source."""


class RFTFolder:
    """The folder of one collection; only the first rank writes into it.

    ``responses.jsonl`` or ``pairs.jsonl`` holds the selected rows. ``prompts.jsonl`` has a line per finished
    prompt, written after its rows, so it determines where to continue. ``statistics.json`` summarizes them.
    ``experiment.toml`` is the resolved experiment.

    Args:
        path: the folder.
        kind: responses or pairs.
        resolved: the experiment as a table.
    """

    def __init__(self, path: Path, kind: str, resolved: Mapping[str, Any]) -> None:
        self.path = path
        self.rows = path / f"{kind}.jsonl"
        self.prompts = path / "prompts.jsonl"
        self.statistics = path / "statistics.json"
        self.config = path / "experiment.toml"
        self.seen: set[str] = set()
        """Identities of the rows written so far."""
        self._resolved = resolved
        self._sums: Counter[str] = Counter()
        self._files: list[JsonLines] = []

    def position(self) -> int:
        """Return the number of finished prompts.

        Raises:
            ConfigError: the folder holds anything but the beginning of this collection.
        """
        if not self.path.exists() or not any(self.path.iterdir()):
            return 0
        if not self.config.is_file():
            raise ConfigError(f"--output must name a new folder, got '{self.path}', which holds other files.")
        # Read with today's keys: a key that did not exist when the collection began has its default.
        if keys := difference(to_table(load(self.config)), self._resolved):
            raise ConfigError(
                f"--output names '{self.path}', begun with other values of {keys}; name a new folder, or "
                "give the same experiment to continue."
            )
        return sum(1 for _ in read_jsonl(self.prompts)) if self.prompts.is_file() else 0

    def open(self, position: int) -> None:
        """Open the files for writing after ``position`` prompts; rows of an unfinished prompt are removed."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(self.config, tomli_w.dumps(self._resolved))
        self._files = [JsonLines(path, position, key=INDEX) for path in (self.rows, self.prompts)]
        self.seen.update(identity(row) for row in read_jsonl(self.rows))
        for line in read_jsonl(self.prompts):
            self._add(line)

    def write(self, index: int, answers: Sequence[ScoredResponse], selection: Selection) -> None:
        """Write the selected rows and the statistics of one prompt."""
        rows, prompts = self._files
        for row in selection.rows:
            rows.write({INDEX: index, **row})
        count = len(answers)
        line = {
            INDEX: index,
            "answers": count,
            "rows": len(selection.rows),
            "reward_mean": sum(answer.reward for answer in answers) / count,
            **{
                f"reward_{label}_mean": sum(answer.rewards[label] for answer in answers) / count
                for label in answers[0].rewards
            },
            "tokens_mean": sum(answer.tokens for answer in answers) / count,
            "dropped": dict(selection.dropped),
        }
        prompts.write(line)
        self._add(line)

    def summary(self) -> dict[str, Any]:
        """Return the statistics of all finished prompts."""
        sums = self._sums
        means = {key: sums[key] / sums["prompts"] for key in sums if key.endswith("_mean")}
        return {
            **{key: sums[key] for key in ("prompts", "prompts_with_rows", "answers", "rows")},
            **means,
            "dropped": {
                key.removeprefix("dropped/"): sums[key] for key in sums if key.startswith("dropped/")
            },
        }

    def write_statistics(self) -> dict[str, Any]:
        """Write statistics.json and return its contents."""
        statistics = self.summary()
        write_atomic(self.statistics, json.dumps(statistics, indent=2) + "\n")
        return statistics

    def _add(self, line: Mapping[str, Any]) -> None:
        self._sums.update(prompts=1, prompts_with_rows=int(line["rows"] > 0))
        self._sums.update({key: value for key, value in line.items() if key not in (INDEX, "dropped")})
        self._sums.update({f"dropped/{reason}": count for reason, count in line["dropped"].items()})

    def close(self) -> None:
        for file in self._files:
            file.close()
