"""The Python blocks of the library's pages run, in order, each page in a module of its own."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.unit.test_docs import BLOCK, DOCS


@pytest.mark.parametrize("name", ["library.md", "tutorial.md"])
def test_the_blocks_of_the_page_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / name
    module = ModuleType("millwheel_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = page.read_text(encoding="utf-8")
    found = list(BLOCK.finditer(text))
    assert len(found) > 2
    for block in found:
        padded = "\n" * text.count("\n", 0, block.start(1)) + block.group(1)
        exec(compile(padded, str(page), "exec"), module.__dict__)
