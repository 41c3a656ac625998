"""The exit statuses: one table in the code, the same one in the docs, and each error has its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millwheel.cli.status import Status, status_of
from millwheel.errors import (
    Fenced,
    HookExited,
    HooksFail,
    IncompatibleStore,
    MillwheelError,
    StoreUnavailable,
    WiringError,
)

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide-command-line.md"


def test_the_guide_has_the_same_table() -> None:
    section = GUIDE.read_text(encoding="utf-8").partition("## Exit statuses\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE)
    assert rows == [(str(int(status)), status.meaning) for status in Status]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WiringError("x"), Status.FAILED),
        (IncompatibleStore("x"), Status.FAILED),
        (StoreUnavailable("x"), Status.NO_STORE),
        (HooksFail("x"), Status.BROKEN_HOOKS),
        (HookExited("x"), Status.HOOK_EXITED),
        (Fenced("x"), Status.TAKEN_OVER),
    ],
)
def test_an_error_has_its_status(error: MillwheelError, status: Status) -> None:
    assert status_of(error) is status
