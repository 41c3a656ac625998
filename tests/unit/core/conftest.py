"""Every test here sees one bundle after the other run, if it does not say otherwise."""

from __future__ import annotations

import pytest

from millwheel import limits


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bundle waits for the commit of the one before."""
    monkeypatch.setattr(limits, "NAGLE_RECORDS", 0)
