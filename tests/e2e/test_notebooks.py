"""The notebooks show what they compute; ``python -m tests.e2e.test_notebooks`` stores it again."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.config.conftest import registry_as_before

__all__ = ["registry_as_before"]

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def run(path: Path) -> dict[str, Any]:
    """Returns the notebook with the outputs of its cells: what they print, and the figure that ends one."""
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(path.parent):
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, cell in enumerate(cells, 1):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                last = execute("".join(cell["source"]), names)
            cell["execution_count"] = number
            cell["outputs"] = []
            if printed.getvalue():
                text = printed.getvalue().splitlines(keepends=True)
                cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": text})
            if last is not None:
                data = {"text/plain": [repr(last)]}
                if hasattr(last, "savefig"):
                    plot = io.BytesIO()
                    last.savefig(plot, format="png", metadata={"Software": None})
                    data = {"image/png": base64.b64encode(plot.getvalue()).decode(), **data}
                output = {
                    "data": data,
                    "execution_count": number,
                    "metadata": {},
                    "output_type": "execute_result",
                }
                cell["outputs"].append(output)
    return notebook


def execute(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell and returns the value of the expression that ends it, if one does."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec", dont_inherit=True), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "cell", "eval", dont_inherit=True), names)


def texts(notebook: dict[str, Any]) -> list[str]:
    """Return the text of each output; plots differ by machine."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return ["".join(output.get("text") or output["data"]["text/plain"]) for output in outputs]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_outputs_are_up_to_date(path: Path) -> None:
    stored = json.loads(path.read_text("utf-8"))
    assert texts(run(path)) == texts(stored), "python -m tests.e2e.test_notebooks"


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    for notebook in NOTEBOOKS:
        notebook.write_text(json.dumps(run(notebook), indent=1, ensure_ascii=False) + "\n", "utf-8")
