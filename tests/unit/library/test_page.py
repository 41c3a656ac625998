"""The Python blocks of docs/library.md run, in order, in one module."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.unit.test_docs import BLOCK, DOCS

PAGE = DOCS / "library.md"


def test_the_blocks_of_the_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("millwheel_library_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = PAGE.read_text(encoding="utf-8")
    found = list(BLOCK.finditer(text))
    assert len(found) > 2
    for block in found:
        padded = "\n" * text.count("\n", 0, block.start(1)) + block.group(1)
        exec(compile(padded, str(PAGE), "exec"), module.__dict__)
