"""Results of the benchmark suite: ratios to peers with their spread, against stored ones, and as a page."""

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

__all__ = ["Ratio", "by_subject", "dumps", "loads", "measured", "merged", "page", "regressed"]

TOLERANCE = 0.15
"""A ratio may fall by this share before it counts as a regression; and all of its spread must be below."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ratio:
    """How many times as fast, or how many times as small, as one peer; times themselves are noise."""

    test: str
    """pytest's name of the benchmark, from the project's root."""
    peer: str
    ratio: float
    low: float | None = None
    high: float | None = None
    """Quotients of the opposite quartiles of both; None where only one number was taken."""
    dtype: str = ""
    threads: int | None = None
    torch: str = ""
    stages: dict[str, dict[str, float]] = field(default_factory=dict, compare=False)
    """Whose -> stage -> what it takes, of our whole; empty where stages were not timed."""

    @property
    def key(self) -> tuple[str, str]:
        return self.test, self.peer

    @property
    def subject(self) -> str:
        """What its file compares: `make bench ONLY=` takes it."""
        return Path(self.test.partition("::")[0]).stem.removeprefix("test_bench_")

    @property
    def name(self) -> str:
        """Its name within its file."""
        return self.test.partition("::")[2].removeprefix("test_").removeprefix("bench_")


def measured(text: str) -> list[Ratio]:
    """Returns the ratios in what ``pytest --benchmark-json`` wrote; benchmarks without a peer have none.

    A benchmark's ``extra_info`` holds ``ratio``, a number or one a peer, and with it, if rounds were timed,
    ``seconds``: what each of them took, ours first; and ``stages``: what of it each stage took.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        runs = json.loads(text)["benchmarks"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError("the results must be what `make bench` wrote into runs/bench.") from error
    return sorted(ratio for run in runs for ratio in _ratios(run["fullname"], run["extra_info"]))


def _ratios(test: str, info: Mapping[str, Any]) -> Iterable[Ratio]:
    if "ratio" not in info:
        return
    seconds: dict[str, list[float]] = info.get("seconds", {})
    own, *peers = seconds or ["ours"]
    found = info["ratio"] if isinstance(info["ratio"], dict) else {(peers or ["peer"])[0]: info["ratio"]}
    for peer, ratio in found.items():
        low, high = _spread(seconds.get(own, ()), seconds.get(peer, ()))
        yield Ratio(
            test=test, peer=peer, ratio=_rounded(ratio), low=low, high=high, dtype=_dtype(info),
            threads=info.get("threads"), torch=info.get("torch", ""), stages=_stages(info.get("stages", {})),
        )  # fmt: skip


def _stages(seconds: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    whole = sum(seconds.get("ours", {}).values())
    return {
        whose: {name: _rounded(value / whole) for name, value in stages.items()}
        for whose, stages in seconds.items()
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


def regressed(new: Ratio, stored: Ratio) -> bool:
    """Whether a ratio is worse than the stored one by more than noise."""
    best = new.ratio if new.high is None else new.high
    return new.ratio < stored.ratio * (1 - TOLERANCE) and best < stored.ratio


def merged(stored: Iterable[Ratio], new: Sequence[Ratio]) -> list[Ratio]:
    """Returns the stored ratios with the new ones in their place; tests that ran anew keep no old peers."""
    ran = {ratio.test for ratio in new}
    return sorted([*(ratio for ratio in stored if ratio.test not in ran), *new])


def by_subject(ratios: Iterable[Ratio]) -> dict[str, list[Ratio]]:
    """Returns the ratios of each file, in their order."""
    found: dict[str, list[Ratio]] = {}
    for ratio in ratios:
        found.setdefault(ratio.subject, []).append(ratio)
    return found


def dumps(ratios: Sequence[Ratio]) -> str:
    """Returns the text of benchmarks/baseline.json."""
    return json.dumps([asdict(ratio) for ratio in ratios], indent=1) + "\n"


def loads(text: str) -> list[Ratio]:
    """Returns the ratios that `dumps` wrote."""
    return [Ratio(**each) for each in json.loads(text)]


PAGE = """<!-- Written by `titanrl bench report RESULTS --accept`; do not edit. -->

# Performance

How many times as fast titanrl is as the peer in the column (where memory is compared: as small), on two
x86-64 cores, after an assertion that both compute the same. Both take turns in one process or run. The
interval is the quotient of opposite quartiles; times are noise on shared machines and are not kept.
What a benchmark compares in detail stands at the top of its file. Measured with torch {torch}; all of it
takes three quarters of an hour on a quiet machine.

```bash
# writes runs/bench, compares it with benchmarks/baseline.json
make bench
# stores it there, and writes this page
titanrl bench report runs/bench/*.json --accept
```

![Ratio to each peer, with its interval](performance.png)
"""


def page(ratios: Sequence[Ratio], folder: Path) -> str:
    """Returns docs/performance.md.

    Args:
        folder: with the benchmarks' files, whose first sentences say what each compares.
    """
    versions = sorted({ratio.torch for ratio in ratios if ratio.torch})
    blocks = [PAGE.format(torch=" and ".join(versions))]
    for subject, own in by_subject(ratios).items():
        rows = [
            "| benchmark | peer | ratio | interval | dtype | threads |",
            "|---|---|---|---|---|---|",
        ]
        for each in own:
            interval = "" if each.low is None else f"{each.low:g} to {each.high:g}"
            rows.append(
                f"| `{each.name}` | {each.peer} | **{each.ratio:g}** | {interval} | {each.dtype} | "
                f"{each.threads or ''} |"
            )
        about = _about(folder / f"test_bench_{subject}.py")
        command = f"```bash\nmake bench ONLY={subject}\n```"
        blocks += [f"## {subject.capitalize()}", about, command, "\n".join(rows)]
        if any(each.stages for each in own):
            blocks += ["What each stage takes, in the time of our whole:", "\n".join(_split(own))]
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def _split(ratios: Iterable[Ratio]) -> Iterable[str]:
    """Yields the lines of the table of stages."""
    yield "| benchmark | whose | stages | together |"
    yield "|---|---|---|---|"
    for each in ratios:
        for whose, stages in each.stages.items():
            told = ", ".join(f"{name} {part:.2f}" for name, part in stages.items())
            yield f"| `{each.name}` | {whose} | {told} | {sum(stages.values()):.2f} |"


def _about(file: Path) -> str:
    """Returns the first paragraph of a benchmark's docstring."""
    doc = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return re.sub(r"``", "`", " ".join(doc.partition("\n\n")[0].split()))
