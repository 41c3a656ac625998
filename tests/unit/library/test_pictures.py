"""The committed pictures of windows and triggers are what the library gives now."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PICTURES = ROOT / "docs" / "pictures"
REPORT = ROOT / "build" / "pictures.html"
"""For people who look at a run of the tests."""
DRAWN: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "pictures.py"))


@pytest.mark.parametrize("name", sorted(DRAWN["PICTURES"]))
def test_a_picture_is_what_the_code_draws(name: str) -> None:
    committed = (PICTURES / f"{name}.svg").read_text(encoding="utf-8")
    assert committed == DRAWN["draw"](DRAWN["PICTURES"][name]), "run `python scripts/pictures.py` and look at it"


def test_the_report_of_a_run_has_every_picture_as_it_is_drawn_now() -> None:
    drawn = {name: DRAWN["draw"](picture) for name, picture in DRAWN["PICTURES"].items()}
    page = DRAWN["report"](drawn)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(page, encoding="utf-8")
    assert [name for name, svg in drawn.items() if f'id="{name}"' not in page or svg not in page] == []
    assert page.count("not as in docs/pictures") == sum(
        (PICTURES / f"{name}.svg").read_text(encoding="utf-8") != svg for name, svg in drawn.items()
    )
    assert "not as in docs/pictures" in DRAWN["report"]({"windows-fixed": "<svg/>"})


def test_no_picture_is_left_over_and_the_page_shows_each() -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    assert {path.name for path in PICTURES.iterdir()} == {f"{name}.svg" for name in DRAWN["PICTURES"]}
    assert [name for name in DRAWN["PICTURES"] if f"(pictures/{name}.svg)" not in page] == []


def test_pictures_show_what_they_are_for() -> None:
    """A pane of each timing, the number of windows, and a dropped record: a picture of nothing would be equal too."""

    def panes(name: str) -> list[Any]:
        return [pane for one in DRAWN["run"](DRAWN["PICTURES"][name]) for pane in one.panes]

    assert [pane.value for pane in panes("windows-fixed")] == [9, 11, 1, 6]
    assert [(pane.end - pane.start) // 3_600_000_000 for pane in panes("windows-calendar")] == [24, 23, 24]
    assert [pane.value for pane in panes("panes-accumulating")] == [5, 8, 12, 20, 1, 20, 29, 7, 7]
    assert [pane.value for pane in panes("panes-discarding")] == [5, 3, 4, 8, 1, 0, 9, 6, 0]
    assert {pane.timing for pane in panes("panes-discarding")} == {"early", "on time", "late"}
    assert [one.step.value for one in DRAWN["run"](DRAWN["PICTURES"]["trigger-watermark"]) if one.dropped] == [9]
