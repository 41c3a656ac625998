"""A run where an event loop runs already, as in a notebook: Ctrl-C in the thread that waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millwheel import launch
from millwheel.host.over import Tolerance
from millwheel.launch import Asked, StoreLoss


class Waiting:
    """A run that goes on until it is told to stop."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.store = SimpleNamespace(close=self._close)
        self.closed = False

    async def _close(self) -> None:
        self.closed = True

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> str:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        async with asyncio.timeout(30):
            while not self._stop.is_set():
                await asyncio.sleep(0.01)
        return "stopped in order"


def test_ctrl_c_stops_it_in_order_and_its_progress_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting()
    monkeypatch.setattr(Asked, "embedded", lambda self, url: waiting)
    asked = Asked(cast(Any, None), None, lambda failure: None, Tolerance(), None, StoreLoss())
    assert cast(Any, launch._run_beside(asked, "postgresql://nowhere")) == "stopped in order"
    assert waiting.closed


@pytest.mark.parametrize(("quarantined", "rejected"), [(0, 0), (None, None), (7, 0)])
def test_nothing_may_be_left_over_where_that_is_asked_for(
    quarantined: int | None, rejected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []
    monkeypatch.setattr(launch, "checked_pipeline", lambda given, who: given)
    monkeypatch.setattr(launch, "check_sources", checked.append)
    pipeline = cast(Any, SimpleNamespace(graph=lambda: "graph"))
    launch._check_asked(Asked(pipeline, None, lambda failure: None, Tolerance(quarantined, rejected), 1, StoreLoss()))
    assert checked == ["graph"]
