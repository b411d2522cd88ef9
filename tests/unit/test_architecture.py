"""The dependency rule of the folders, read from the imports with ast."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
MAX_LINES = 400
COMPONENT_MAY = {"registry", "protocols", "ops", "errors", "runtime"}
LIGHT = (
    "__init__",
    "__main__",
    "errors",
    "algorithm/table",
    "algorithm/dataflow",
    "preflight/memory",
    "preflight/verify",
)
HEAVY = {"torch", "tensordict", "torchtitan", "torchrl", "vllm", "transformers", "datasets"}


class Import(NamedTuple):
    file: str
    line: int
    module: str
    """Absolute dotted name; `from a import b` counts as a.b."""
    top: bool
    """Runs when the module is imported (not inside a function, nor under TYPE_CHECKING)."""
    is_bare: bool
    """`import x` without a dot and without `as`."""


def python_files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    # Links are not followed: titanrl/components is ../components, titanrl/presets is ../experiments.
    links = {ROOT / "titanrl/components", ROOT / "titanrl/presets"}
    return sorted({path for path in found if links.isdisjoint(path.parents)})


def imports_of(source: str, name: str) -> list[Import]:
    """Return the imports of a file, in the order of their lines."""
    found: list[Import] = []
    nodes: list[tuple[ast.AST, bool]] = [(ast.parse(source, name), True)]
    while nodes:
        node, top = nodes.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                bare = alias.asname is None and "." not in alias.name
                found.append(Import(name, node.lineno, alias.name, top, bare))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: relative import; write the absolute name."
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [Import(name, node.lineno, module, top, False) for module in modules]
        is_type_checking = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        inner = top and not is_type_checking and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        nodes += [
            (child, inner)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
        ]
    return sorted(found, key=lambda item: item.line)


def under(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def wrong(found: list[Import]) -> list[str]:
    return [f"{item.file}:{item.line} imports {item.module}" for item in found]


@cache
def every() -> list[Import]:
    """Return the imports of all files."""
    return [
        item
        for path in python_files("titanrl", "components", "tools", "tests", "benchmarks")
        for item in imports_of(path.read_text(), str(path.relative_to(ROOT)))
    ]


def shipped() -> list[Import]:
    return [item for item in every() if item.file.startswith(("titanrl/", "components/"))]


def components() -> list[Import]:
    return [item for item in every() if item.file.startswith("components/")]


def test_components_import_only_the_contracts() -> None:
    allowed = tuple(f"titanrl.{name}" for name in COMPONENT_MAY)
    bad = [
        item for item in components() if under(item.module, "titanrl") and not under(item.module, *allowed)
    ]
    # Components of several files import their own parts, and parts that they share.
    assert wrong([item for item in bad if not under(item.module, "titanrl.components")]) == []


def test_components_import_torch_as_a_bare_package() -> None:
    bad = [item for item in components() if under(item.module, "torch") and item.top and not item.is_bare]
    assert wrong(bad) == []


def test_components_import_no_heavy_package_at_the_top() -> None:
    heavy = HEAVY - {"torch"} | {"reasoning_gym", "math_verify", "sympy"}
    assert wrong([item for item in components() if item.top and under(item.module, *heavy)]) == []


def test_components_hold_no_collectives() -> None:
    bad = [item for item in components() if under(item.module, "torch.distributed", "torchtitan")]
    assert wrong(bad) == []


def test_torchtitan_only_in_engine_and_models() -> None:
    found = [item for item in shipped() if under(item.module, "torchtitan")]
    assert (
        wrong([item for item in found if not item.file.startswith(("titanrl/engine/", "titanrl/models/"))])
        == []
    )


def test_vllm_only_in_its_samplers() -> None:
    found = [item for item in shipped() if under(item.module, "vllm")]
    assert wrong([item for item in found if not item.file.startswith("components/samplers/vllm")]) == []


def test_components_are_imported_by_their_titanrl_name() -> None:
    assert wrong([item for item in every() if under(item.module, "components")]) == []


def test_command_line_imports_no_framework() -> None:
    light = [f"titanrl/{name}.py" for name in LIGHT]
    folders = tuple(f"titanrl/{name}/" for name in ("cli", "config", "protocols", "registry", "runtime"))
    found = [item for item in shipped() if item.file in light or item.file.startswith(folders)]
    assert wrong([item for item in found if item.top and under(item.module, *HEAVY)]) == []


def test_ops_import_torch_as_a_bare_package() -> None:
    found = [item for item in shipped() if item.file.startswith("titanrl/ops/") and item.top]
    bad = [
        item for item in found if under(item.module, *HEAVY) and not (item.module == "torch" and item.is_bare)
    ]
    assert wrong(bad) == []


LAYERS = (
    "errors",
    "protocols",
    "registry",
    "ops",
    "runtime",
    "algorithm",
    "config",
    "models",
    "preflight",
    "report",
    "engine",
    "data",
    "rollout",
    "eval",
    "training",
    "serve",
    "ablation",
    "recipes",
    "cli",
)
"""The packages of titanrl; each may import those before it."""


def test_no_module_is_loose() -> None:
    loose = {path.name for path in (ROOT / "titanrl").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py", "errors.py"}
    packages = {path.parent.name for path in (ROOT / "titanrl").glob("*/__init__.py")}
    assert packages - {"components"} == set(LAYERS) - {"errors"}


def test_packages_import_only_packages_below_them() -> None:
    """Imports for types alone and inside functions count too."""
    level = {f"titanrl.{name}": i for i, name in enumerate(LAYERS)}

    def package(module: str) -> str:
        return ".".join(module.split(".")[:2])

    upwards = [
        item
        for item in shipped()
        if item.file.startswith("titanrl/")
        for source in [package(item.file.removesuffix(".py").replace("/", "."))]
        if source in level and level.get(package(item.module), -1) > level[source]
    ]
    assert wrong(upwards) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types alone and inside functions count too; those of packages count as their __init__."""
    modules = {
        name.removesuffix(".__init__"): path
        for path in python_files("titanrl", "components")
        for name in [_module(path)]
    }
    imports: dict[str, set[str]] = {name: set() for name in modules}
    for item in shipped():
        source = _module(ROOT / item.file).removesuffix(".__init__")
        target = item.module
        while target not in modules and "." in target:
            target = target.rpartition(".")[0]
        if target in modules and target != source:
            imports[source].add(target)
    sorter = TopologicalSorter(imports)
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def _module(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return f"titanrl.{name}" if name.startswith("components.") else name


def test_files_hold_one_idea() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python_files("titanrl", "components")}
    assert {str(path.relative_to(ROOT)): count for path, count in lengths.items() if count > MAX_LINES} == {}


def test_import_scanner_finds_every_form_of_import() -> None:
    source = "import torch\nfrom torch import nn\nif TYPE_CHECKING:\n    import vllm\n"
    source += "def f():\n    import vllm.x as y\n"
    assert [(item.module, item.top, item.is_bare) for item in imports_of(source, "titanrl/x.py")] == [
        ("torch", True, True),
        ("torch.nn", True, False),
        ("vllm", False, True),
        ("vllm.x", False, False),
    ]
