"""``python -m tools.architecture_plot``: draw the packages of titanrl and their imports in layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLUMNS", "FILE", "direct", "figure", "imports_of_packages", "plot"]

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "architecture.svg"

COLUMNS = MappingProxyType(
    {
        "cli": 0.6,
        "ablation": -1.4,
        "recipes": 0.2,
        "training": -1.4,
        "eval": -1.4,
        "serve": 3.2,
        "rollout": -1.4,
        "engine": -1.4,
        "report": -1.4,
        "preflight": 1.6,
        "config": -1.4,
        "data": -3.5,
        "algorithm": -1.4,
        "models": 0.6,
        "components": 3.2,
        "registry": -0.6,
        "ops": 1.6,
        "protocols": 0.4,
        "errors": 0.4,
        "runtime": 4.4,
    }
)
"""Horizontal position of each package; its row follows from the imports."""

COLOUR = "#345995"


def imports_of_packages(root: Path = ROOT) -> dict[str, set[str]]:
    """Return the packages that each package imports, of titanrl and the built-in components.

    Imports inside functions count; imports for type checkers do not.

    Args:
        root: folder that holds ``titanrl`` and ``components``.
    """
    result: dict[str, set[str]] = {package: set() for package in COLUMNS}
    for folder, depth in (("titanrl", 1), ("components", 0)):
        for path in sorted((root / folder).rglob("*.py")):
            package = path.relative_to(root).parts[depth].removesuffix(".py")
            if package in COLUMNS and (depth == 0 or package != "components"):
                modules = _modules(ast.parse(path.read_text("utf-8")))
                result[package] |= {module.split(".")[1] for module in modules} & (COLUMNS.keys() - {package})
    return result


def _modules(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names of titanrl's modules that a file imports at run time."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "titanrl":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("titanrl."))
        yield from _modules(node)


def direct(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports without those that follow from others: a -> c where a -> b -> c.

    Args:
        imports: package -> the packages that it imports.

    Raises:
        graphlib.CycleError: packages import each other.
    """
    below: dict[str, set[str]] = {}
    result: dict[str, set[str]] = {}
    for package in TopologicalSorter(imports).static_order():
        implied = set().union(*(below[target] for target in imports[package]))
        below[package] = imports[package] | implied
        result[package] = imports[package] - implied
    return result


def plot(file: Path = FILE) -> Path:
    """Write the figure and return its path; equal imports give equal bytes.

    Args:
        file: the figure; its suffix decides the format.
    """
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "titanrl", "svg.fonttype": "none"}):
        figure().savefig(file, metadata={"Date": None} if file.suffix == ".svg" else {"Software": None})
    return file


def figure() -> Figure:
    """Return the figure that ``plot`` writes; the id of an arrow is ``importer-imported``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    arrows = direct(imports_of_packages())
    height: dict[str, int] = {}
    for package, targets in arrows.items():  # In topological order: targets come first.
        height[package] = 1 + max((height[target] for target in targets), default=-1)
    figure = Figure(figsize=(8.5, 7.6), layout="constrained", dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    style = {"arrowstyle": "-|>", "color": COLOUR, "alpha": 0.6, "shrinkA": 0, "shrinkB": 0}
    for package, targets in sorted(arrows.items()):
        for target in sorted(targets):
            start, end = (COLUMNS[package], height[package] - 0.2), (COLUMNS[target], height[target] + 0.24)
            arrow = axes.annotate("", xy=end, xytext=start, arrowprops=style).arrow_patch
            assert arrow is not None
            arrow.set_gid(f"{package}-{target}")
    box = {"boxstyle": "round,pad=0.3", "facecolor": "#e8eef7", "edgecolor": COLOUR}
    for package, x in COLUMNS.items():
        axes.text(x, height[package], package, fontsize=12, ha="center", va="center", bbox=box, zorder=3)
    axes.set_xlim(min(COLUMNS.values()) - 0.6, max(COLUMNS.values()) + 0.6)
    axes.set_ylim(-0.4, max(height.values()) + 0.4)
    axes.axis("off")
    return figure


if __name__ == "__main__":
    print(plot())
