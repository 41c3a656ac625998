"""Which pipelines the files of a directory declare.

Never here: importing a user's module, which a Tab must not run.
"""

from __future__ import annotations

import ast
from pathlib import Path


def pipelines(begun: str, directory: Path | None = None) -> list[str]:
    """Every "module:attribute" of a file in `directory` that says `attribute = Pipeline(...)` and begins with `begun`."""
    found = []
    for path in sorted((directory or Path()).glob("*.py")):
        if path.stem.startswith(begun.partition(":")[0]):
            found += [f"{path.stem}:{name}" for name in _declared(path)]
    return [name for name in found if name.startswith(begun)]


def _declared(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_pipeline(node.value.func)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


def _is_pipeline(function: ast.expr) -> bool:
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return name == "Pipeline"
