"""The docs are written to be read once: what of that can be counted is checked here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

ARCHITECTURE_WORDS = 3_000
SENTENCE_WORDS = 45
"""Most sentences have at most 25 words; one that is longer than this always says several things."""

PARAGRAPH_START = re.compile(r"(?!```|\d+\. )(?:[\w`_\[\"(]|\*\*?\w)")

GENERATED = "\n## Figures"
"""In reliability.md: what comes after this heading is written by `make reliability`."""

FENCE = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TABLE_OR_HEADING = re.compile(r"^[ \t]*(?:\||#).*$", re.MULTILINE)
LIST_ITEM = re.compile(r"^[ \t]*(?:[*-]|\d+\.)[ \t]+", re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`]*`")
LINK_TARGET = re.compile(r"\]\([^)]*\)")
PARAGRAPH = re.compile(r"\n[ \t]*\n")
# A full stop ends a sentence when a space and something that may begin one follow; "e.g. this" and "1.5" do not match.
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*_\]]*\s+(?=[\"(\[*_]*[A-Z0-9])")


def prose(text: str) -> str:
    """A page without code, tables, headings, comments and link targets; list items are paragraphs of their own."""
    for pattern in (FENCE, COMMENT, TABLE_OR_HEADING, LIST_ITEM):
        text = pattern.sub("\n\n", text)
    return LINK_TARGET.sub("]", INLINE_CODE.sub("Code", text))


def sentences(text: str) -> Iterator[str]:
    """Every sentence of a page's prose, on one line each."""
    for paragraph in PARAGRAPH.split(prose(text)):
        yield from filter(None, SENTENCE_END.split(" ".join(paragraph.split())))


def too_long(text: str) -> list[str]:
    """The sentences of a page that have more words than one should have."""
    return [f"{len(words)} words: {line}" for line in sentences(text) if len(words := line.split()) > SENTENCE_WORDS]


def opening(text: str) -> str:
    """The first line of a page after its title that is not empty."""
    lines = [line for line in COMMENT.sub("", text).splitlines() if line.strip()]
    assert lines[0].startswith("# "), "a page begins with its title"
    return lines[1]


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_sentence_is_too_long(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.name == "reliability.md":
        text = text[: text.index(GENERATED)]
    assert too_long(text) == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_a_page_begins_with_a_paragraph(page: Path) -> None:
    assert PARAGRAPH_START.match(opening(page.read_text(encoding="utf-8")))


def test_the_architecture_is_read_in_one_sitting() -> None:
    words = (DOCS / "architecture.md").read_text(encoding="utf-8").split()
    assert len(words) <= ARCHITECTURE_WORDS


LONG = " ".join(["word"] * (SENTENCE_WORDS + 1))


@pytest.mark.parametrize(
    "text",
    [
        f"# Title\n\n{LONG}.",
        f"First. {LONG.capitalize()}. Last.",
        f"* an item\n* {LONG}\n",
        LONG.replace(" ", "\n", 20),
        f"(A parenthesis.) {LONG.capitalize()}",
        " ".join(["`code` word"] * 23),
    ],
)
def test_a_long_sentence_is_noticed(text: str) -> None:
    assert len(too_long(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"```\n{LONG}\n```",
        f"| {LONG} |",
        f"# {LONG}",
        f"`{LONG}`",
        f"<!-- {LONG} -->",
        f"See [this]({LONG}).",
        "Short. " * 40,
        "* short\n" * 40,
        "1. Short\n" * 40,
    ],
)
def test_what_is_no_sentence_is_not_counted(text: str) -> None:
    assert too_long(text) == []


@pytest.mark.parametrize("beginning", ["## Part", "| a | b |", "```python", "* item", "1. item", "<!-- x -->\n## Part"])
def test_another_beginning_is_noticed(beginning: str) -> None:
    assert not PARAGRAPH_START.match(opening(f"# Title\n\n{beginning}\n"))


@pytest.mark.parametrize(
    "beginning", ["This page", "**Status:** accepted", "`x` is", "[A link](x)", "*One* thing", "3 things"]
)
def test_a_paragraph_is_a_beginning(beginning: str) -> None:
    assert PARAGRAPH_START.match(opening(f"# Title\n\n{beginning}\n"))


# The newcomer's hour

WORDS_A_MINUTE = 200
PATH_STEP = re.compile(r"[`\[]([\w./]+\.(?:py|md))[`\]](?:\([\w./]+\))? \((\d+)\)")


def path_to_the_heart(second: bool = False) -> list[tuple[Path, int]]:
    """Files that the README tells a newcomer to read first, or in the second hour, and how many minutes each takes."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## The path to the heart")[2].partition("The second hour")[2 * second]
    assert section, "the README has a path to the heart"
    folder, found = ROOT, []
    for name, minutes in PATH_STEP.findall(section):
        path = ROOT / name if "/" in name else folder / name
        folder = path.parent
        found.append((path, int(minutes)))
    return found


def test_the_path_to_the_heart_is_read_aloud_in_an_hour() -> None:
    steps = path_to_the_heart()
    assert len(steps) >= 7
    words = {path.name: len(path.read_text(encoding="utf-8").split()) for path, _ in steps}
    assert sum(words.values()) <= 58 * WORDS_A_MINUTE, "two minutes are for the example in the README itself"
    assert misjudged(steps) == {}


def test_the_second_hour_takes_what_it_says() -> None:
    steps = path_to_the_heart(second=True)
    assert len(steps) == 3
    assert misjudged(steps) == {}


def misjudged(steps: list[tuple[Path, int]]) -> dict[str, float]:
    """How many minutes a file takes of which something else is said."""
    taken = {path.name: len(path.read_text(encoding="utf-8").split()) / WORDS_A_MINUTE for path, _ in steps}
    return {path.name: taken[path.name] for path, minutes in steps if abs(taken[path.name] - minutes) > 2}
