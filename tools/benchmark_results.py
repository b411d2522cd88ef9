"""Results of the benchmark suite: ratios to peers with their spread, stored ratios, and the page."""

from __future__ import annotations

import ast
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from titanrl.errors import ConfigError

__all__ = ["Ratio", "by_subject", "dumps", "has_regressed", "loads", "merge", "page", "parse_results"]

TOLERANCE = 0.15
"""A ratio may fall by this share before it counts as a regression; its whole spread must be below, too."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ratio:
    """Speed, or memory, relative to one peer; absolute times are not kept because they are noisy."""

    test: str
    """pytest's id of the benchmark, relative to the project's root."""
    peer: str
    ratio: float
    low: float | None = None
    high: float | None = None
    """Quotients of opposite quartiles of both; None if there is a single measurement."""
    dtype: str = ""
    threads: int | None = None
    torch: str = ""
    stages: dict[str, dict[str, float]] = field(default_factory=dict, compare=False)
    """Ours or peer -> stage -> its time relative to our total; empty if stages were not timed."""

    @property
    def key(self) -> tuple[str, str]:
        return self.test, self.peer

    @property
    def subject(self) -> str:
        """Subject of its file, as `make bench ONLY=` takes it."""
        return Path(self.test.partition("::")[0]).stem.removeprefix("test_bench_")

    @property
    def name(self) -> str:
        """Name within its file."""
        return self.test.partition("::")[2].removeprefix("test_").removeprefix("bench_")


def parse_results(text: str) -> list[Ratio]:
    """Return the ratios in the output of ``pytest --benchmark-json``; benchmarks without a peer have none.

    A benchmark's ``extra_info`` holds ``ratio``, a number or one number per peer. If rounds were timed, it
    also holds ``seconds``, the time of each round, ours first, and ``stages``, the time of each stage.

    Raises:
        ConfigError: the text has another format.
    """
    try:
        runs = json.loads(text)["benchmarks"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError("the results must be files that `make bench` writes to runs/bench.") from error
    return sorted(ratio for run in runs for ratio in _ratios(run["fullname"], run["extra_info"]))


def _ratios(test: str, info: Mapping[str, Any]) -> Iterable[Ratio]:
    if "ratio" not in info:
        return
    seconds: dict[str, list[float]] = info.get("seconds", {})
    own, *peers = seconds or ["ours"]
    ratios = info["ratio"] if isinstance(info["ratio"], dict) else {(peers or ["peer"])[0]: info["ratio"]}
    for peer, ratio in ratios.items():
        low, high = _spread(seconds.get(own, ()), seconds.get(peer, ()))
        yield Ratio(
            test=test,
            peer=peer,
            ratio=_rounded(ratio),
            low=low,
            high=high,
            dtype=_dtype(info),
            threads=info.get("threads"),
            torch=info.get("torch", ""),
            stages=_stages(info.get("stages", {})),
        )


def _stages(seconds: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    total = sum(seconds.get("ours", {}).values())
    return {
        owner: {name: _rounded(value / total) for name, value in stages.items()}
        for owner, stages in seconds.items()
    }


def _spread(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float | None, float | None]:
    if min(len(ours), len(theirs)) < 3:
        return None, None
    (own_low, _, own_high), (low, _, high) = (statistics.quantiles(each, n=4) for each in (ours, theirs))
    return _rounded(low / own_high), _rounded(high / own_low)


def _dtype(info: Mapping[str, Any]) -> str:
    return str(info.get("dtype", "")).removeprefix("torch.")


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def has_regressed(new: Ratio, stored: Ratio) -> bool:
    """Return whether a ratio is significantly below the stored one."""
    best = new.ratio if new.high is None else new.high
    return new.ratio < stored.ratio * (1 - TOLERANCE) and best < stored.ratio


def merge(stored: Iterable[Ratio], new: Sequence[Ratio]) -> list[Ratio]:
    """Return the stored ratios updated by the new ones; all old ratios of a repeated test are dropped."""
    repeated = {ratio.test for ratio in new}
    return sorted([*(ratio for ratio in stored if ratio.test not in repeated), *new])


def by_subject(ratios: Iterable[Ratio]) -> dict[str, list[Ratio]]:
    """Return the ratios grouped by file, in their order."""
    groups: dict[str, list[Ratio]] = {}
    for ratio in ratios:
        groups.setdefault(ratio.subject, []).append(ratio)
    return groups


def dumps(ratios: Sequence[Ratio]) -> str:
    """Return the text of benchmarks/baseline.json."""
    return json.dumps([asdict(ratio) for ratio in ratios], indent=1) + "\n"


def loads(text: str) -> list[Ratio]:
    """Return the ratios written by `dumps`."""
    return [Ratio(**each) for each in json.loads(text)]


PAGE = """<!-- Written by `python -m tools.bench report RESULTS --accept`; do not edit. -->

# Performance

Each ratio is the speed of titanrl relative to a peer (for memory benchmarks: the peer's memory relative to
titanrl's), measured on two x86-64 cores. Every benchmark first asserts that both compute the same result;
both alternate in one process or run. The interval is the quotient of opposite quartiles. Absolute times are
not kept because they are noisy on shared machines. The docstring of each benchmark file describes the
comparison in detail. Measured with torch {torch}. The whole suite takes 45 minutes on an idle machine.

```bash
# Writes runs/bench and compares it with benchmarks/baseline.json.
make bench
# Stores the new ratios there and writes this page.
python -m tools.bench report runs/bench/*.json --accept
```

![Ratio to each peer with its interval](performance.png)
"""


def page(ratios: Sequence[Ratio], folder: Path) -> str:
    """Return docs/performance.md.

    Args:
        ratios: the stored ratios.
        folder: folder of the benchmark files, whose docstrings describe the comparisons.
    """
    versions = sorted({ratio.torch for ratio in ratios if ratio.torch})
    blocks = [PAGE.format(torch=" and ".join(versions))]
    for subject, group in by_subject(ratios).items():
        rows = [
            "| benchmark | peer | ratio | interval | dtype | threads |",
            "|---|---|---|---|---|---|",
        ]
        for each in group:
            interval = "" if each.low is None else f"{each.low:g} to {each.high:g}"
            rows.append(
                f"| `{each.name}` | {each.peer} | **{each.ratio:g}** | {interval} | {each.dtype} | "
                f"{each.threads or ''} |"
            )
        description = _description(folder / f"test_bench_{subject}.py")
        command = f"```bash\nmake bench ONLY={subject}\n```"
        blocks += [f"## {subject.capitalize()}", description, command, "\n".join(rows)]
        if any(each.stages for each in group):
            blocks += ["Time of each stage relative to our total:", "\n".join(_stage_rows(group))]
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def _stage_rows(ratios: Iterable[Ratio]) -> Iterable[str]:
    """Yield the lines of the table of stages."""
    yield "| benchmark | implementation | stages | sum |"
    yield "|---|---|---|---|"
    for each in ratios:
        for owner, stages in each.stages.items():
            times = ", ".join(f"{name} {share:.2f}" for name, share in stages.items())
            yield f"| `{each.name}` | {owner} | {times} | {sum(stages.values()):.2f} |"


def _description(file: Path) -> str:
    """Return the first paragraph of a benchmark file's docstring."""
    doc = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return re.sub(r"``", "`", " ".join(doc.partition("\n\n")[0].split()))
