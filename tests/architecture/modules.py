"""Find the project's modules and what they declare by reading: importing is what tests judge."""

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """Yield every module below a top-level package with its file."""
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def stages() -> dict[str, str]:
    """Return stage name → module, for every `@stage` function outside the benchmarks."""
    found: dict[str, str] = {}
    for module, path in modules("lmpipe"):
        if module.startswith("lmpipe.bench."):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(map(_is_stage, node.decorator_list)):
                found[node.name] = module
    return found


def config_modules() -> set[str]:
    """Return the modules of the library that define a config."""
    return {
        module
        for module, path in modules("lmpipe")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "StageConfig" for base in node.bases)
    }


def _is_stage(decorator: ast.expr) -> bool:
    return (
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Name)
        and decorator.func.id == "stage"
    )
