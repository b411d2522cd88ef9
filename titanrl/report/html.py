"""The shell of a page that is one file: sections of tables, figures and text; no network is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure
    from jinja2 import Environment

__all__ = ["Page", "code", "details", "figures", "legend", "note", "render", "script_json", "table"]


class Section(NamedTuple):
    anchor: str
    title: str
    blocks: Sequence[Markup]


class Page:
    """A page that grows section by section.

    Args:
        title: of the page. subtitle: a line under it.
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title, self.subtitle = title, subtitle
        self.sections: list[Section] = []

    def section(self, title: str, *blocks: Markup) -> None:
        """Appends a section; the page's menu leads to it."""
        self.sections.append(Section(f"section-{len(self.sections)}", title, blocks))

    def write(self, to: Path) -> Path:
        """Writes the page, library and data inside, and returns its path."""
        from bokeh.resources import Resources

        text = render("page.html", page=self, bokeh=Resources(mode="inline", components=["bokeh"]))
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, "utf-8")
        return to


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """Returns a table; numbers stand right, and one too wide for the screen scrolls by itself."""
    shown = [[(cell, isinstance(cell, int | float)) for cell in row] for row in rows]
    numeric = [any(is_number for _, is_number in column) for column in zip(*shown, strict=True)]
    numeric += [False] * (len(head) - len(numeric))  # Without rows there are no columns.
    return render("table.html", head=list(zip(head, numeric, strict=True)), rows=shown)


def figures(*plots: Figure, wide: bool = False) -> Markup:
    """Returns Bokeh figures in a grid; each is drawn when it comes into view.

    Args:
        wide: each takes the page's whole width.
    """
    from bokeh.embed import json_item

    items = [(plot.height, script_json(json_item(plot))) for plot in plots]
    return render("figures.html", items=items, wide=wide)


def legend(colours: Mapping[str, str]) -> Markup:
    """Returns buttons, name -> colour; each hides and shows the lines of that name in all figures."""
    return render("legend.html", colours=colours)


def details(summary: str, *blocks: Markup) -> Markup:
    """Returns blocks that stay folded until they are asked for."""
    return render("details.html", summary=summary, blocks=blocks)


def note(text: str) -> Markup:
    """Returns a line of explanation."""
    return Markup("<p class='note'>{}</p>").format(text)


def code(text: str) -> Markup:
    """Returns text as it stands in a file."""
    return Markup("<pre>{}</pre>").format(text)


def script_json(value: Any) -> Markup:
    """Returns JSON that may stand in a script element, whatever strings it holds."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def render(template: str, **values: Any) -> Markup:
    """Returns a template of this package with its holes filled; what is not Markup is escaped."""
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = files("titanrl.report") / "templates"
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text("utf-8")),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["source"] = lambda name: Markup((folder / name).read_text("utf-8"))
    environment.filters["number"] = number
    return environment


def number(value: Any) -> str:
    """Returns a cell's text: four significant digits of a float, a dash for what is missing."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, Markup) else str(value)
