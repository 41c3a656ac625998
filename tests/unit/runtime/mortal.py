"""A store that a process loses at one of its calls, as if it were killed there: the call is made, or it is not."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any, Final

from millwheel import Pipeline
from millwheel.bundles import LogWrite, decode_checkpoint
from millwheel.model import MIN_TIME
from millwheel.ports import Store, WatermarkWrite
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_storage.memory import MemoryStore

WRITES: Final = frozenset({"commit", "fold", "advance", "declare", "persist_watermarks", "recover", "mark"})
"""The calls that are counted."""


class Delays:
    """How long a store takes before and after a call, by chance: some calls are slow, in each run as many as it draws."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._share, self._most_s = dice.choice([0, 0.1, 0.5]), dice.choice([0.001, 0.01, 0.03])

    async def pass_(self, name: str) -> None:
        """Before or after a call of `name`."""
        if self._dice.random() < self._share:
            await asyncio.sleep(self._dice.random() * self._most_s)


class Slow(Delays):
    """One kind of call takes long, always: whoever does not wait for its answer is far ahead."""

    def __init__(self, kind: str, by_s: float) -> None:
        self._kind, self._by_s = kind, by_s

    async def pass_(self, name: str) -> None:
        """See `Delays`."""
        if name == self._kind:
            await asyncio.sleep(self._by_s)


class MortalStore:
    """`store` until the call number `at` of `WRITES`, which is the last one; `done` says whether that is still made."""

    def __init__(self, store: Store, at: int, done: bool = True, delays: Delays | None = None) -> None:
        self._store, self._left, self._done, self._delays = store, at, done, delays
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
        if self._delays:
            await self._delays.pass_(name)
        if self.dead.is_set():
            await asyncio.Event().wait()
        if name in WRITES and done == self._done:
            self._left -= 1
            if self._left <= 0:
                self.dead.set()
                await asyncio.Event().wait()


NEVER: Final = 1 << 60
"""The number of a call at which nothing is killed."""


class SentAndNotTaken(MortalStore):
    """`store` until something is durable that `sender` produces: it has not left yet, so nobody has taken it."""

    def __init__(self, store: MemoryStore, sender: str) -> None:
        super().__init__(store, NEVER)
        self._intervals, self._sender = store.by_low, sender

    async def commit(self, writes: Sequence[LogWrite]) -> Any:
        """See `Store`."""
        kept = await self._store.commit(writes)
        senders = {interval for _, interval in self._intervals(self._sender)}
        if any(write.interval in senders and decode_checkpoint(write.payload).produced for write in writes):
            self.dead.set()
            await asyncio.Event().wait()
        return kept


class PassedAndNotTold(MortalStore):
    """`store` until the watermarks of `names` have all reached `at`, us: they are stored then, and nobody has heard of it."""

    def __init__(self, store: MemoryStore, names: Sequence[str], at: int) -> None:
        super().__init__(store, NEVER)
        self._known, self._names, self._at = store.watermark, names, at

    async def persist_watermarks(self, writes: Sequence[WatermarkWrite]) -> Any:
        """See `Store`."""
        kept = await self._store.persist_watermarks(writes)
        if all(self._known.get(name, MIN_TIME) >= self._at for name in self._names):
            self.dead.set()
            await asyncio.Event().wait()
        return kept


async def run_killed(
    pipeline: Pipeline, store: Store, at: int, done: bool = True, delays: Delays | None = None
) -> bool:
    """Run until the kill, or to the end if that comes first; whether it was killed."""
    return await run_mortal(pipeline, MortalStore(store, at, done, delays))


async def run_mortal(pipeline: Pipeline, mortal: MortalStore) -> bool:
    """Run until the process loses the store, or to the end if that comes first; whether it was lost."""
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
