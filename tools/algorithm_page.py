"""docs/algorithms.md from the presets: the parts of each, and what an experiment must add."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from titanrl.config.load import read

__all__ = ["algorithm_page"]

PAGE = """<!-- Written by `make docs` from experiments/algorithms. Edit those, not this page. -->

# Algorithms

A preset is an experiment file that defines an algorithm and nothing else: components, roles, the numbers of
responses and optimizer steps, the learning rate. An experiment builds on a preset and adds the model, the
prompts or data, the rewards, and sizes. [Choose an algorithm](choose-an-algorithm.md) compares them and their
costs.

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

No part of a preset is hidden in code: `titanrl show FILE` prints the fully resolved configuration with all
defaults. Any part can be replaced by name, so an algorithm without a preset is another table in the file. In
the tables below, G is the number of responses per prompt, 8 by default. By default a batch is one optimizer
step, gradients are clipped at norm 1, and the optimizer is AdamW without weight decay.

## Online: sampled responses

These presets need `[prompts]`, `[sampler]` and, unless a teacher scores the tokens, `[[reward]]`.

{online}

## Offline: datasets

These presets need `[data]`, and neither `[sampler]` nor `[[reward]]`.

{offline}
"""

ARXIV = re.compile(r"\b(\d{4}\.\d{5})\b")


class Comment(NamedTuple):
    """The comment of a preset before its first table."""

    description: str
    source: str
    requirement: str
    """What an experiment on it must add."""


def algorithm_page(folder: Path) -> str:
    """Return the page as Markdown.

    Args:
        folder: folder of the presets.
    """
    online, offline = list[str](), list[str]()
    for path in sorted(folder.glob("*.toml")):
        comment = _comment(path)
        for base in _bases(path):
            comment = comment._replace(requirement=comment.requirement or _comment(base).requirement)
        papers = ", ".join(
            f"[{paper}](https://arxiv.org/abs/{paper})"
            for paper in dict.fromkeys(ARXIV.findall(comment.source))
        )
        requirement = comment.requirement and f"An experiment {comment.requirement}."
        cells = [
            f"[`{path.stem}`](../experiments/algorithms/{path.name})",
            " ".join(filter(None, (comment.description, papers and f"{papers}.", requirement))),
            _parts(read(path).table),
        ]
        row = " | ".join(cell.replace("|", "\\|") for cell in cells)
        (offline if "[data]" in comment.requirement else online).append(f"| {row} |")
    head = "| preset | description | parts |\n|---|---|---|\n"
    return PAGE.format(online=head + "\n".join(online), offline=head + "\n".join(offline))


def _comment(path: Path) -> Comment:
    """Return the parts of the comment: before ``Source:``, after it, and after ``An experiment``."""
    lines = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    text = "\n".join(lines)
    description, _, rest = text.partition("Source:")
    source, _, requirement = rest.partition("\nAn experiment ")
    # The requirement is a single line; an example or another remark may follow.
    requirement = re.split(r"[.:]\n|[.:]$", requirement, maxsplit=1)[0]
    return Comment(*(" ".join(part.split()) for part in (description, source, requirement)))


def _bases(path: Path) -> list[Path]:
    match = re.search(r'^base = "(.*)"', path.read_text("utf-8"), flags=re.MULTILINE)
    return [] if match is None else [path.parent / match[1]]


def _parts(table: Mapping[str, Any]) -> str:
    """Return the parts of a preset, with components linked to their pages."""
    algorithm = table.get("algorithm", {})
    parts = [_component(kind, algorithm[kind]) for kind in ("advantage", "loss") if kind in algorithm]
    if "aggregation" in algorithm:
        parts.append(_component("aggregation", algorithm["aggregation"]))
    if "kl" in algorithm:
        parts.append(_kl(algorithm["kl"]))
    for kind in ("filter", "correction"):
        parts += [f"{kind} {_component(kind, each)}" for each in algorithm.get(kind, [])]
    if algorithm.get("old_logprob") == "sampler":
        parts.append("bypass mode")
    if table.get("model", {}).get("head") == "value":
        parts.append("value head")
    if "reference" in table and "kl" not in algorithm:
        parts.append("reference")
    if "critic" in table:
        parts.append(_critic(table["critic"]))
    if "teacher" in table:
        top_k = table["teacher"].get("top_k")
        parts.append("teacher" if top_k is None else f"top-{top_k} tokens of the teacher")
    loop = table.get("loop", {})
    if "samples_per_prompt" in loop:
        parts.append(f"G = {loop['samples_per_prompt']}")
    if loop.get("minibatches", 1) > 1:
        parts.append(f"{loop['minibatches']} optimizer steps per batch")
    if loop.get("epochs", 1) > 1:
        parts.append(f"{loop['epochs']} epochs per batch")
    rate = table.get("optimizer", {}).get("lr")
    return "; ".join([*parts, f"lr {_number(rate)}"])


def _component(kind: str, table: Mapping[str, Any]) -> str:
    name = table["name"]
    keys = ", ".join(f"{key} {_number(value)}" for key, value in table.items() if key != "name")
    return f"[{name}](components/{kind}.md#{name})" + (f" ({keys})" if keys else "")


def _kl(table: Mapping[str, Any]) -> str:
    estimator = {
        key: value for key, value in table.items() if key not in ("placement", "coefficient", "controller")
    }
    controller = table.get("controller")
    size = _number(table["coefficient"]) if controller is None else _component("kl_controller", controller)
    return f"{_component('kl', estimator)} in the {table.get('placement', 'loss')}, {size}"


def _critic(table: Mapping[str, Any]) -> str:
    loss = _component("loss", table["loss"]) if "loss" in table else "[value](components/loss.md#value)"
    warmup = table.get("warmup_steps", 0)
    where = " on the policy's backbone" if table.get("shared") else ""
    return f"critic {loss}{where}" + (f", {warmup} warm-up steps" if warmup else "")


def _number(value: Any) -> str:
    return re.sub(r"e-0(\d)", r"e-\1", str(value))
