"""Analysis of test statements: which names are the program's. Standard library only."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Collection, Iterator
from typing import NamedTuple

__all__ = ["Statement", "analyse"]

ALIASES = {"np": "numpy", "numpy": "numpy"}
LIBRARY = {
    **dict.fromkeys(("isclose", "inf", "nan"), "math"),
    "allclose": "numpy",
    "Decimal": "decimal",
    "Fraction": "fractions",
    **dict.fromkeys(("OrderedDict", "defaultdict", "namedtuple"), "collections"),
    **dict.fromkeys(("Any", "Callable", "Dict", "List", "Optional", "Set", "Tuple", "Union"), "typing"),
}
"""Names that a test means as the library's, although it does not import them, and their modules."""


class Statement(NamedTuple):
    """A test, with the owners of the names that it does not define itself."""

    source: str
    names: list[str]
    """Names of the program."""
    library: dict[str, tuple[str, str]]
    """Name -> module, and its attribute or "" for the module itself."""
    is_weak: bool
    """Whether the program sees its own results again, or both sides of a comparison are its own, as in
    `decode(encode(x)) == x`: a program can pass without the right values."""


def analyse(source: str, declared: Collection[str] = ()) -> Statement:
    """Return the owners of a test's names.

    A name that the test does not define is the program's, unless it is a builtin, a module of the standard
    library of which an attribute is read, or in LIBRARY. Builtins that a program replaces are thus never
    used, unless they are declared.

    Args:
        source: the test.
        declared: names that are the program's in any case.

    Raises:
        ValueError: the test is no Python, or no name in it is the program's.
    """
    try:
        tree = ast.parse(source)
        free = set(_free(symtable.symtable(source, "<test>", "exec")))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"a test is no Python: {error}: {source[:80]!r}") from None
    modules = {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    names, library = [], {}
    for name in sorted(free):
        module = ALIASES.get(name, name)
        if name in declared:
            names.append(name)
        elif hasattr(builtins, name):
            continue
        elif name in modules and (name in ALIASES or name in sys.stdlib_module_names):
            library[name] = (module, "")
        elif name in LIBRARY:
            library[name] = (LIBRARY[name], name)
        else:
            names.append(name)
    if not names:
        raise ValueError(
            f"a test calls no function of the program: {source[:80]!r}; names of builtins are the builtins, "
            'unless the reference answer lists them, {"program_names": ["sum"], "tests": [...]}'
        )
    return Statement(source, names, library, _is_weak(tree, set(names)))


def _free(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the global names that a module reads and does not define."""
    own = {
        symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()
    }
    tables = [table]
    while tables:
        each = tables.pop()
        tables += each.get_children()
        for symbol in each.get_symbols():
            is_global = each is table or symbol.is_global()
            if is_global and symbol.is_referenced() and symbol.get_name() not in own:
                yield symbol.get_name()


def _is_weak(tree: ast.AST, names: set[str]) -> bool:
    derived = set(names)
    for assign in (each for each in ast.walk(tree) if isinstance(each, ast.Assign)):
        if _has_call(assign.value, derived):  # Variables that hold results of the program.
            targets = [each for target in assign.targets for each in ast.walk(target)]
            derived |= {each.id for each in targets if isinstance(each, ast.Name)}
    values = derived - names
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _root(node.func) in names:
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(_has_call(each, names) or _reads(each, values) for each in arguments):
                return True
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if sum(_has_call(each, names) or _reads(each, values) for each in sides) > 1:
                return True
    return False


def _has_call(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(each, ast.Call) and _root(each.func) in names for each in ast.walk(node))


def _reads(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
