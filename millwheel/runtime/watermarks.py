"""The authority in a running process: a watermark is persisted before anybody hears of it (§4.5).

Lives here: when watermarks are persisted, and who is told.  Never here: what they are, that is `core.authority`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from millwheel.core.authority import Authority
from millwheel.ports import Store
from millwheel.runtime.retry import until_answered

PERSIST_DELAY_S = 0.01


class Watermarks:
    """`tell` hears of all that is persisted: the input watermarks, us, of the computations for which they rose, if any."""

    def __init__(
        self, senders: Mapping[str, Iterable[str]], store: Store, tell: Callable[[Mapping[str, int]], None]
    ) -> None:
        self._store = store
        self._tell = tell
        self._changed = asyncio.Event()
        self.authority = Authority(senders, {})
        """Another one after `load`."""

    async def load(self, senders: Mapping[str, Iterable[str]]) -> None:
        """Begin with what is persisted; `senders` of each computation."""
        self.authority = Authority(senders, await self._store.watermarks())

    def report(self, name: str, interval: int, value: int) -> None:
        """An interval's low watermark."""
        self.authority.report(name, interval, value)
        self._changed.set()

    def bounded(self) -> None:
        """Bounds of sources have changed."""
        self._changed.set()

    async def loop(self) -> None:
        """The endless service that persists them."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            changed = self.authority.changes()
            if not changed:
                continue
            await until_answered("watermark", lambda changed=changed: self._store.persist_watermarks(changed))  # type: ignore[misc]
            self._tell(self.authority.adopt(changed))
            await asyncio.sleep(PERSIST_DELAY_S)
