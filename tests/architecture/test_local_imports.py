"""An import inside a function has a reason: it brings a package that the module is free of.

The modules are read, not run: what an import brings is what the modules at its end import at their
tops, and so on. An import that brings nothing new to its module belongs at the top, where readers
and tools look for it.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.architecture.modules import REPOSITORY, modules

PROJECT = ("lmpipe", "flows", "tasks", "deployments")

# What `lmpipe plan` imports: these packages cost every command alike, wherever they are named.
PLAN_PACKAGES = {
    *("annotated_doc", "annotated_types", "cloudpickle", "fsspec", "numpy", "psutil", "pyarrow"),
    *("pydantic", "pydantic_core", "rich", "shellingham", "typer", "typing_extensions"),
    *("typing_inspection", "xxhash", "yaml", "zstandard"),
}

# Importing module, the start of what it may import late, why.
EXCEPTIONS = [
    ("lmpipe.report.read", "pyarrow", "pages are written without pyarrow (test_report.py)"),
    ("lmpipe.report.accounting", "pyarrow", "the same"),
    ("tasks.bridge", "tasks.prefect_view", "its report sections cost `plan` 30 ms"),
    ("lmpipe.report.report", "lmpipe.report.", "the pages cost `plan` 30 ms"),
    ("lmpipe.curation.selection.select", "lmpipe.curation.selection.", "they cost `plan` 17 ms"),
]

Import = ast.Import | ast.ImportFrom


@cache
def _trees() -> dict[str, ast.Module]:
    return {
        name: ast.parse(path.read_text(encoding="utf-8"))
        for package in PROJECT
        for name, path in modules(package)
    }


def _imports(node: ast.AST) -> Iterator[Import]:
    """Yield the imports that run with a node, those for the type checker left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        ):
            yield from _imports(child)


def _targets(statement: Import) -> set[str]:
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    found = {f"{statement.module}.{alias.name}" for alias in statement.names}
    return {name if name in _trees() else str(statement.module) for name in found}


@cache
def _reached(start: str) -> frozenset[str]:
    """Return every module that importing `start` imports, and the packages of others."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name.split(".")[0] not in PROJECT:
            seen.add(name.split(".")[0])
        elif name not in seen:
            seen.add(name)
            waiting += [t for each in _imports(_trees()[name]) for t in _targets(each)]
    return frozenset(seen)


def _brought(names: set[str]) -> set[str]:
    """Return the packages of others that `plan` is free of and that these names bring."""
    reached = set().union(*map(_reached, names)) if names else set()
    free = PLAN_PACKAGES | sys.stdlib_module_names
    return {name for name in reached if name.split(".")[0] not in PROJECT} - free


def _has_exception(module: str, names: set[str]) -> bool:
    if any(
        module == importer and all(name.startswith(prefix) for name in names)
        for importer, prefix, _ in EXCEPTIONS
    ):
        return True
    # A command's own modules come when it is called: at the tops they cost each command 60 ms.
    always = _reached("deployments.cli")
    is_command = module.startswith("flows.cli.") or module == "deployments.services"
    own = all(name.split(".")[0] in PROJECT and name not in always for name in names)
    return is_command and module in always and own


def _without_reason() -> list[str]:
    found = []
    for module, tree in _trees().items():
        own = _brought({name for each in _imports(tree) for name in _targets(each)})
        functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
        for statement in (each for function in functions for each in _imports(function)):
            names = _targets(statement)
            if _brought(names) <= own and not _has_exception(module, names):
                found.append(f"{module}:{statement.lineno}: {ast.unparse(statement)}")
    return found


def test_an_import_inside_a_function_brings_a_package_that_its_module_is_free_of() -> None:
    assert len(_trees()) > 300
    assert sum(isinstance(n, ast.Import | ast.ImportFrom) for n in _late()) > 100
    assert _without_reason() == []


def _late() -> Iterator[ast.AST]:
    for tree in _trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield from _imports(node)


def test_no_exception_is_kept_for_an_import_that_is_gone() -> None:
    for importer, prefix, _ in EXCEPTIONS:
        late = {
            name
            for node in ast.walk(_trees()[importer])
            if isinstance(node, ast.FunctionDef)
            for each in _imports(node)
            for name in _targets(each)
        }
        assert any(name.startswith(prefix) for name in late), (importer, prefix)


PROBE = """
import atexit, json, runpy, sys
path, *sys.argv[1:] = sys.argv[1:]
atexit.register(lambda: open(path, "w").write(json.dumps(sorted(sys.modules))))
runpy.run_module("deployments.cli", run_name="__main__")
"""


def test_plan_imports_these_packages_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "modules.json"
    done = subprocess.run(
        [
            *(sys.executable, "-c", PROBE, str(path), "plan", "demo"),
            *("--set", f"store.root=file://{tmp_path}/store"),
        ],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in json.loads(path.read_text())}
    ours = {*PROJECT, *sys.stdlib_module_names, "__main__"}
    # an interpreter's own: editable installs, Cython's shared modules, the build's settings
    inner = {n for n in loaded if n.startswith(("_", "cython_runtime"))}
    assert loaded - ours - inner == PLAN_PACKAGES
