"""The names that users import: each from its module, when it is first asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import millwheel

SOURCE = Path(str(millwheel.__file__)).read_text(encoding="utf-8")


def test_what_is_typed_is_what_is_found() -> None:
    """Type checkers read the import statements, a program the table."""
    guarded = next(node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    typed = {
        node.module: tuple(alias.name for alias in node.names)
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
    }
    assert typed == millwheel._MODULES
    assert sorted(name for names in typed.values() for name in names) == sorted(millwheel.__all__)


def test_each_name_is_that_of_its_module() -> None:
    for module, names in millwheel._MODULES.items():
        for name in names:
            assert getattr(millwheel, name) is getattr(import_module(module), name)
    assert set(millwheel.__all__) <= set(dir(millwheel))


def test_what_is_not_there_is_told_as_everywhere() -> None:
    with pytest.raises(AttributeError, match="module 'millwheel' has no attribute 'Pipline'"):
        _ = millwheel.Pipline  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Pipline'"):
        from millwheel import Pipline  # type: ignore[attr-defined]  # noqa: F401


def test_the_entry_of_the_command_imports_nothing_else_of_it() -> None:
    """Until then Ctrl-C ends it with a traceback."""
    code = (
        "import sys, millwheel.__main__; print(sorted(name for name in sys.modules if name.startswith(('mil', 'msg'))))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "['millwheel', 'millwheel.__main__']\n"
