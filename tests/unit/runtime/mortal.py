"""A store that a process loses at one of its calls, as if it were killed there: the call is made, or it is not."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from millwheel import Pipeline
from millwheel.ports import Store
from millwheel.runtime.embedded import EmbeddedRun

WRITES: Final = frozenset({"commit", "fold", "advance", "declare", "persist_watermarks", "recover", "mark"})
"""The calls that are counted."""


class MortalStore:
    """`store` until the call number `at` of `WRITES`, which is the last one; `done` says whether that is still made."""

    def __init__(self, store: Store, at: int, done: bool = True) -> None:
        self._store, self._left, self._done = store, at, done
        self.dead = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def call(*given: Any, **named: Any) -> Any:
            await self._strike(name, False)
            found = await method(*given, **named)
            await self._strike(name, True)
            return found

        return call

    async def _strike(self, name: str, done: bool) -> None:
        if self.dead.is_set():
            await asyncio.Event().wait()
        if name in WRITES and done == self._done:
            self._left -= 1
            if self._left <= 0:
                self.dead.set()
                await asyncio.Event().wait()


async def run_killed(pipeline: Pipeline, store: Store, at: int, done: bool = True) -> bool:
    """Run until the kill, or to the end if that comes first; whether it was killed."""
    mortal = MortalStore(store, at, done)
    run = asyncio.ensure_future(EmbeddedRun(pipeline.graph(), mortal, pipeline.tables).run())
    dead = asyncio.ensure_future(mortal.dead.wait())
    try:
        async with asyncio.timeout(120):
            await asyncio.wait([run, dead], return_when=asyncio.FIRST_COMPLETED)
        if not mortal.dead.is_set():
            await run
        return mortal.dead.is_set()
    finally:
        dead.cancel()
        for _ in range(20):
            run.cancel()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait([run], timeout=0.05)
            if run.done():
                break
        await asyncio.gather(run, dead, return_exceptions=True)
