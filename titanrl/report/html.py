"""Self-contained HTML pages: sections of tables, figures and text, without network access."""

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
    """A section of a page."""

    anchor: str
    title: str
    blocks: Sequence[Markup]


class Page:
    """A page to which sections are appended.

    Args:
        title: title of the page.
        subtitle: a line below the title.
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title, self.subtitle = title, subtitle
        self.sections: list[Section] = []

    def section(self, title: str, *blocks: Markup) -> None:
        """Append a section; the page's menu links to it."""
        self.sections.append(Section(f"section-{len(self.sections)}", title, blocks))

    def write(self, file: Path) -> Path:
        """Write the page, including libraries and data, and return its path."""
        from bokeh.resources import Resources

        text = render("page.html", page=self, bokeh=Resources(mode="inline", components=["bokeh"]))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return file


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """Return a table; numbers are right-aligned, and a table wider than the screen scrolls."""
    cells = [[(cell, isinstance(cell, int | float)) for cell in row] for row in rows]
    numeric = [any(is_number for _, is_number in column) for column in zip(*cells, strict=True)]
    numeric += [False] * (len(head) - len(numeric))  # A table without rows has no columns to inspect.
    return render("table.html", head=list(zip(head, numeric, strict=True)), rows=cells)


def figures(*plots: Figure, wide: bool = False) -> Markup:
    """Return Bokeh figures in a grid; each is rendered when it scrolls into view.

    Args:
        plots: the figures.
        wide: whether each figure takes the full width of the page.
    """
    from bokeh.embed import json_item

    items = [(plot.height, script_json(json_item(plot))) for plot in plots]
    return render("figures.html", items=items, wide=wide)


def legend(colours: Mapping[str, str]) -> Markup:
    """Return buttons, name -> colour, that hide and show the lines of a name in all figures."""
    return render("legend.html", colours=colours)


def details(summary: str, *blocks: Markup) -> Markup:
    """Return folded blocks."""
    return render("details.html", summary=summary, blocks=blocks)


def note(text: str) -> Markup:
    """Return an explanatory paragraph."""
    return Markup("<p class='note'>{}</p>").format(text)


def code(text: str) -> Markup:
    """Return preformatted text."""
    return Markup("<pre>{}</pre>").format(text)


def script_json(value: Any) -> Markup:
    """Return JSON that is safe inside a script element, whatever strings it holds."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # nosec B704


def render(template: str, **values: Any) -> Markup:
    """Return a rendered template of this package; values that are not Markup are escaped."""
    # The environment escapes values.
    return Markup(_environment().get_template(template).render(values))  # nosec B704


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = files("titanrl.report") / "templates"
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Files of this package.
    environment.globals["source"] = lambda name: Markup((folder / name).read_text("utf-8"))  # nosec B704
    environment.filters["number"] = number
    return environment


def number(value: Any) -> str:
    """Return a cell's text: four significant digits of a float, a dash for a missing value."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, Markup) else str(value)
