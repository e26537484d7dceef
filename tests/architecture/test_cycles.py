"""No module needs itself: imports of the project's own modules make no circle.

import-linter's layers hold between packages; a circle inside one would pass them. Imports inside
functions count as well: a circle that is cut open there is one all the same. Those for type
checkers alone count too.
"""

import ast
from pathlib import Path

from tests.architecture.modules import modules


def imports(path: Path, known: frozenset[str]) -> set[str]:
    """Return the project's modules that a file names in any import."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & known
            if not inner <= known:
                found.add(node.module)
    return found & known


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the modules that are left when those without an open import are taken away."""
    left = dict(graph)
    while True:
        free = {module for module, needs in left.items() if not needs & left.keys()}
        if not free:
            break
        left = {module: needs for module, needs in left.items() if module not in free}
    return [[module, *sorted(needs & left.keys())] for module, needs in sorted(left.items())]


def test_no_module_imports_itself_over_others() -> None:
    packages = ("lmpipe", "tasks", "flows", "deployments")
    paths = {name: path for package in packages for name, path in modules(package)}
    known = frozenset(paths)
    assert len(known) > 300
    graph = {name: imports(path, known) - {name} for name, path in paths.items()}
    assert circles(graph) == []


def test_a_circle_is_noticed() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [
        ["a", "b"],
        ["b", "c"],
        ["c", "b"],
    ]
