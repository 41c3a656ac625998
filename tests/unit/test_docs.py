"""The guide's Python blocks run, in order, in one module; the typed one passes mypy's strict mode."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.planted import MUTANTS
from tests.sim.scenarios import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINKED = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted(DOCS.rglob("*.md")),
]
GUIDE = DOCS / "guide-computations.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")


def blocks() -> list[tuple[int, str]]:
    """(line of the guide, source) of every Python block."""
    text = GUIDE.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)), found.group(1)) for found in BLOCK.finditer(text)]


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_blocks_of_the_guide_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("millwheel_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where msgspec looks up annotations
    found = blocks()
    assert len(found) > 10
    for line, source in found:
        padded = "\n" * line + source  # a traceback then names the line of the guide
        exec(compile(padded, str(GUIDE), "exec"), module.__dict__)


def test_the_block_of_the_durabilities_runs() -> None:
    (source,) = BLOCK.findall((DOCS / "guide-durability.md").read_text(encoding="utf-8"))
    exec(compile(source, "guide-durability.md", "exec"), {})


@pytest.mark.slow
def test_the_typed_block_passes_mypy(tmp_path: Path) -> None:
    from mypy import api

    typed = [source for _, source in blocks() if source.startswith("# typed\n")]
    assert len(typed) == 1
    path = tmp_path / "typed_block.py"
    path.write_text(typed[0], encoding="utf-8")
    config = DOCS.parent / "pyproject.toml"
    out, errors, status = api.run(["--config-file", str(config), "--cache-dir", str(tmp_path / "cache"), str(path)])
    assert (status, errors) == (0, ""), out + errors


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_the_docs_lead_somewhere(page: Path) -> None:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for name, anchor in LINK.findall(text):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


def test_the_published_figures_are_of_these_bugs_and_these_scenarios() -> None:
    page = (DOCS / "reliability.md").read_text(encoding="utf-8")
    figures = page[page.index("## Figures") :]
    missing = [name for name in (*MUTANTS, *SCENARIOS) if f"| {name} |" not in figures]
    assert not missing, f"run `make reliability`: it has no figures of {missing}"
