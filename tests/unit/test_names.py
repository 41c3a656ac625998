"""One word, one meaning: no class and no module has the name of another one, and the glossary says where each term lives."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("millwheel", "storage/millwheel_storage", "injectors/millwheel_injectors")
GLOSSARY = ROOT / "docs" / "glossary.md"

TWO_CLASSES = {
    "Outcome": "a user's `simulate` and a user's `iterate` each return one; both names are public",
    "Progress": "`host`'s is public; `library`'s is stored, and its name is a part of the fingerprint of what is stored",
    "Tail": "a public policy of iterations; the Zeitgeist's is stored, by that name",
    "Window": "a public value of the library; the Zeitgeist's is stored, by that name",
}
"""Names of two classes, and why neither can have another one."""

TWO_MODULES = {
    "embedded": "users import `millwheel.runtime.embedded` and `millwheel_storage.embedded`",
    "errors": "iterations on Spark are a library of their own, with errors of its own",
    "progress": "iterations on Spark are a library of their own, with figures of its own",
}
"""Names of two modules, and why; a verb of the command line may besides be called like what it shows."""


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.stem]


def classes(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Where each class name is defined, at any depth."""
    found = defaultdict(list)
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.name}:{node.lineno}")
    return found


def modules(paths: Iterable[Path]) -> dict[str, list[str]]:
    """The modules of each name; packages and programs have names that say nothing."""
    found = defaultdict(list)
    for path in paths:
        if path.stem not in ("__init__", "__main__") and path.parent.name != "cli":
            found[path.stem].append(str(path))
    return found


def several(found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_two_classes_have_one_name() -> None:
    assert several(classes(sources(*PACKAGES, "examples"))).keys() == TWO_CLASSES.keys()


def test_no_two_modules_have_one_name() -> None:
    assert several(modules(sources(*PACKAGES))).keys() == TWO_MODULES.keys()


def test_a_second_class_and_a_second_module_of_one_name_are_noticed(tmp_path: Path) -> None:
    for name in ("a/one.py", "b/one.py", "cli/one.py", "a/__init__.py", "b/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("class A:\n    class Inner: ...\n" if name == "a/one.py" else "")
    (tmp_path / "b" / "two.py").write_text("def f():\n    class Inner: ...\n")
    paths = sorted(tmp_path.rglob("*.py"))
    assert several(classes(paths)) == {"Inner": ["one.py:2", "two.py:2"]}
    assert [*several(modules(paths))] == ["one"]


# The glossary


def terms() -> list[tuple[str, str, str]]:
    """(term, meaning, where it lives) of every row."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    return [row for row in rows if row[0] not in ("word", "---")]


def place_of(name: str) -> Path:
    """The file of a module that the glossary names by its path below `millwheel`, or from the root of the repository."""
    return next((ROOT / base / name for base in ("", "millwheel") if (ROOT / base / name).is_file()), ROOT / name)


def test_the_glossary_has_each_term_once() -> None:
    found = [term for term, _, _ in terms()]
    assert len(found) == len(set(found)) > 50


@pytest.mark.parametrize("row", terms(), ids=lambda row: row[0])
def test_a_term_is_short_and_lives_in_a_module_that_exists(row: tuple[str, str, str]) -> None:
    _, meaning, lives = row
    places = re.findall(r"`([^`]+\.py)`", lives)
    assert places
    assert [name for name in places if not place_of(name).is_file()] == []
    assert len(meaning.split()) <= 50


def test_a_module_that_is_gone_is_noticed() -> None:
    assert place_of("core/interval/machine.py").is_file()
    assert not place_of("core/interval.py").is_file()
