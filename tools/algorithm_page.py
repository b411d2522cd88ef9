"""docs/algorithms.md from the presets: what each is made of, and what an experiment on it must say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from titanrl.config.load import read

__all__ = ["algorithm_page"]

PAGE = """<!-- Written by `make docs` from experiments/algorithms. Edit those, not this page. -->

# Algorithms

A preset is an experiment file that says what an algorithm is and nothing else: components, roles, the number
of answers and optimizer steps, the learning rate. An experiment builds on one and adds the model, what it
trains on, what an answer is worth, and sizes; [which to use, and what it costs](choose-an-algorithm.md):

```toml
base = "algorithms/dapo.toml"      # a preset, relative to this file

[model]
path = "models/smollm2-135m"

[prompts]
name = "reasoning_gym"
dataset = "chain_sum"

[sampler]
name = "vllm"
max_response_tokens = 64

[[reward]]
name = "reasoning_gym"
dataset = "chain_sum"

[loop]
steps = 100
prompts_per_step = 16
```

Nothing of a preset is hidden in code: `titanrl show FILE` prints all of it, every default included. Any part
is changed by name, so an algorithm that is not here is another table in the file. G is the number of answers
to a prompt, 8 unless said; a batch is one optimizer step unless said; gradients are clipped at norm 1; AdamW
without weight decay.

## On sampled answers

`[prompts]`, `[sampler]` and, unless a teacher judges the tokens, `[[reward]]`.

{sampled}

## On fixed answers

`[data]`, and neither `[sampler]` nor `[[reward]]`.

{fixed}
"""

ARXIV = re.compile(r"\b(\d{4}\.\d{5})\b")


class Comment(NamedTuple):
    """What a preset says of itself before its first table."""

    what: str
    source: str
    asks: str
    """What an experiment on it must say."""


def algorithm_page(folder: Path) -> str:
    """Returns the page as Markdown.

    Args:
        folder: of the presets.
    """
    rows: dict[bool, list[str]] = {True: [], False: []}
    for path in sorted(folder.glob("*.toml")):
        comment = _comment(path)
        for base in _bases(path):
            comment = comment._replace(asks=comment.asks or _comment(base).asks)
        papers = ", ".join(
            f"[{paper}](https://arxiv.org/abs/{paper})"
            for paper in dict.fromkeys(ARXIV.findall(comment.source))
        )
        asks = comment.asks and f"An experiment {comment.asks}."
        cells = [
            f"[`{path.stem}`](../experiments/algorithms/{path.name})",
            " ".join(filter(None, (comment.what, papers and f"{papers}.", asks))),
            _made_of(read(path).table),
        ]
        row = " | ".join(cell.replace("|", "\\|") for cell in cells)
        rows["[data]" in comment.asks].append(f"| {row} |")
    head = "| preset | what it is | made of |\n|---|---|---|\n"
    return PAGE.format(sampled=head + "\n".join(rows[False]), fixed=head + "\n".join(rows[True]))


def _comment(path: Path) -> Comment:
    """Returns the comment's parts: all before ``Source:``, what follows it, and ``An experiment ...``."""
    lines = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    text = "\n".join(lines)
    what, _, rest = text.partition("Source:")
    source, _, asks = rest.partition("\nAn experiment ")
    # It ends with its line: what follows is an example, or another remark.
    asks = re.split(r"[.:]\n|[.:]$", asks, maxsplit=1)[0]
    return Comment(*(" ".join(part.split()) for part in (what, source, asks)))


def _bases(path: Path) -> list[Path]:
    found = re.search(r'^base = "(.*)"', path.read_text("utf-8"), flags=re.MULTILINE)
    return [] if found is None else [path.parent / found[1]]


def _made_of(table: Mapping[str, Any]) -> str:
    """Returns a preset's parts, components linked to their pages."""
    algorithm = table.get("algorithm", {})
    parts = [_component(kind, algorithm[kind]) for kind in ("advantage", "loss") if kind in algorithm]
    if "aggregation" in algorithm:
        parts.append(_component("aggregation", algorithm["aggregation"]))
    if "kl" in algorithm:
        parts.append(_kl(algorithm["kl"]))
    for kind in ("filter", "correction"):
        parts += [f"{kind} {_component(kind, each)}" for each in algorithm.get(kind, [])]
    if algorithm.get("old_logprob") == "sampler":
        parts.append("two-policy mode")
    if table.get("model", {}).get("head") == "value":
        parts.append("value head")
    if "reference" in table and "kl" not in algorithm:
        parts.append("reference")
    if "critic" in table:
        parts.append(_critic(table["critic"]))
    if "teacher" in table:
        top_k = table["teacher"].get("top_k")
        parts.append("teacher" if top_k is None else f"teacher's {top_k} likeliest tokens")
    loop = table.get("loop", {})
    if "samples_per_prompt" in loop:
        parts.append(f"G = {loop['samples_per_prompt']}")
    if loop.get("minibatches", 1) > 1:
        parts.append(f"{loop['minibatches']} optimizer steps a batch")
    if loop.get("epochs", 1) > 1:
        parts.append(f"{loop['epochs']} passes over a batch")
    rate = table.get("optimizer", {}).get("lr")
    return "; ".join([*parts, f"lr {_number(rate)}"])


def _component(kind: str, table: Mapping[str, Any]) -> str:
    name = table["name"]
    keys = ", ".join(f"{key} {_number(value)}" for key, value in table.items() if key != "name")
    return f"[{name}](components/{kind}.md#{name})" + (f" ({keys})" if keys else "")


def _kl(table: Mapping[str, Any]) -> str:
    own = {
        key: value for key, value in table.items() if key not in ("placement", "coefficient", "controller")
    }
    controller = table.get("controller")
    size = _number(table["coefficient"]) if controller is None else _component("kl_controller", controller)
    return f"{_component('kl', own)} in the {table.get('placement', 'loss')}, {size}"


def _critic(table: Mapping[str, Any]) -> str:
    loss = _component("loss", table["loss"]) if "loss" in table else "[value](components/loss.md#value)"
    warmup = table.get("warmup_steps", 0)
    where = " on the policy's body" if table.get("shared") else ""
    return f"critic {loss}{where}" + (f", {warmup} steps of warm-up" if warmup else "")


def _number(value: Any) -> str:
    return re.sub(r"e-0(\d)", r"e-\1", str(value))
