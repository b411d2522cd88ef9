"""``python -m tools.pages``: write docs/components, docs/algorithms.md and docs/config.md.

The pages are generated from the sources: docstrings, fields, ranges and test coverage.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from titanrl.registry import FOLDERS, component_class, declares, kinds
from titanrl.registry.declarations import DECLARATIONS
from titanrl.registry.decode import fields_of
from titanrl.registry.docs import allowed, declarations, default_of, first_line, key_docs, reads
from titanrl.runtime.lazy import lazy_torch
from tools.algorithm_page import algorithm_page
from tools.config_page import config_page
from tools.page_texts import GENERATED, INDEX, KINDS, Kind
from tools.status import built_in, status_of

__all__ = ["pages", "write"]

ROOT = Path(__file__).parents[1]
ARXIV = re.compile(r"(?:arXiv )?\b(\d{4}\.\d{5})\b")


def pages() -> dict[str, str]:
    """Return file name -> Markdown of each component page."""
    rows = ["| kind | table | names |", "|---|---|---|"]
    for kind in kinds():
        links = ", ".join(f"[{name}]({kind}.md#{name})" for name in built_in(kind))
        rows.append(f"| [{KINDS[kind].title}]({kind}.md) | {_tables(KINDS[kind])} | {links} |")
    index = {"README.md": INDEX.format(table="\n".join(rows))}
    return index | {f"{kind}.md": _page(kind) for kind in kinds()}


def write(root: Path) -> list[Path]:
    """Write all pages to a clone and return their paths."""
    folder = root / "docs" / "components"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")
    algorithms = root / "docs" / "algorithms.md"
    algorithms.write_text(algorithm_page(root / "experiments" / "algorithms"), "utf-8")
    config = root / "docs" / "config.md"
    config.write_text(config_page(), "utf-8")
    return [algorithms, config, *sorted(folder.iterdir())]


def _page(kind: str) -> str:
    introduction = KINDS[kind]
    lines = [
        GENERATED,
        f"# {introduction.title}",
        introduction.text,
        f"Table: {_tables(introduction)}. Signature: `{introduction.call}`. [Notation](README.md#notation).",
    ]
    index = ["| name | description | source |", "|---|---|---|"]
    for name in built_in(kind):
        cls = component_class(kind, name)
        summary = first_line(cls, keep_code=True).removeprefix("Returns ")
        index.append(f"| [`{name}`](#{name}) | {_cell(summary)} | {_papers(cls)} |")
    lines.append("\n".join(index))
    lines.append(_declarations(kind))
    for name in built_in(kind):
        lines += _component(kind, name)
    return "\n\n".join(lines) + "\n"


def _declarations(kind: str) -> str:
    """Return the table of the attributes that a class of a kind may declare."""
    rows = ["| declaration | default | meaning |", "|---|---|---|"]
    for name, each in DECLARATIONS[kind].items():
        rows.append(f"| `{name}` | `{each.default!r}` | {_cell(each.meaning)} |")
    return "\n".join(["A class of this kind may declare, as a class attribute or a property:", "", *rows])


def _component(kind: str, name: str) -> list[str]:
    """Return the Markdown blocks of one component."""
    cls = component_class(kind, name)
    blocks = [f"## `{name}`", *_blocks(inspect.cleandoc(cls.__doc__ or ""))]
    docs = key_docs(cls)
    rows = []
    for key, (field, hint) in fields_of(cls).items():
        values, meaning = _cell(allowed(hint)), _cell(docs.get(key, ""))
        default = default_of(field)
        default = default if default in ("required", "off") else f"`{default}`"
        rows.append(f"| `{key}` | {default} | {values} | {meaning} |")
    if rows:
        blocks.append("\n".join(["| key | default | allowed | meaning |", "|---|---|---|---|", *rows]))
    facts = [] if rows else ["- No keys."]
    if declares(cls, "in_keys"):
        facts.append(f"- Reads: {reads(cls)}")
    facts += [f"- Declares `{key}`: {value}" for key, value in declarations(kind, cls).items()]
    status = status_of(kind, name)
    laws = ", ".join(f"[{Path(law).name}](../../{law})" for law in status.laws)
    facts.append(f"- Golden cases: {status.golden}. Laws: {laws or 'none'}")
    file = "/".join(cls.__module__.split(".")[3:]) + ".py"
    facts.append(f"- File: [{file}](../../components/{FOLDERS[kind]}/{file})")
    return [*blocks, "\n".join(facts)]


def _blocks(doc: str) -> list[str]:
    """Return a docstring as Markdown: indented paragraphs are formulas, and papers are links."""
    blocks: list[str] = []
    for paragraph in doc.split("\n\n"):
        if paragraph.startswith("    "):
            blocks.append(f"```text\n{inspect.cleandoc(paragraph)}\n```")
        else:
            blocks.append(_prose(paragraph))
    return blocks


def _prose(text: str) -> str:
    """Return text with papers linked and HTML characters escaped, outside of code."""
    parts = re.split(r"(``.*?``|`[^`]*`)", text, flags=re.DOTALL)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = "`" + part.strip("`") + "`"
        else:
            linked = ARXIV.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", part.replace("<", "&lt;"))
            parts[i] = re.sub(r"^(Source|Metrics|Elsewhere):", r"**\1:**", linked, flags=re.MULTILINE)
    return "".join(parts)


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|").replace("\n", " ")


def _papers(cls: type) -> str:
    """Return links to the papers that a docstring names as its source."""
    source = (cls.__doc__ or "").partition("Source:")[2]
    ids = dict.fromkeys(ARXIV.findall(source))
    return ", ".join(f"[{paper}](https://arxiv.org/abs/{paper})" for paper in ids)


def _tables(kind: Kind) -> str:
    return re.sub(r"\[+[\w.]+\]+", r"`\g<0>`", kind.table)


if __name__ == "__main__":
    lazy_torch()
    for path in write(ROOT):
        print(path.relative_to(ROOT))
