"""Pushing records into a pipeline from any program: `Pusher` for ordinary code, `AsyncPusher` where an event loop runs.

Lives here: the client that blocks, around the one that does not.  Never here: what is sent.  Both need the extra
`millwheel-streams[cluster]`.

    with Pusher("127.0.0.1:7100", "orders") as pusher:
        pusher.push("order-17", b'{"item": "tea"}', "2026-08-01T12:00:00Z")

When the block ends, all that was pushed is durable.  A record that gets no answer is sent again with its id, and counts once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from millwheel.errors import PushError, PushRefused
from millwheel.limits import PUSH_PATIENCE_S
from millwheel.model import Time

try:
    from millwheel.transport.push_client import AsyncPusher
except ModuleNotFoundError as missing:
    raise ImportError(
        f"{missing.name} is missing: pip install 'millwheel-streams[cluster]'", name=missing.name
    ) from missing

__all__ = ["AsyncPusher", "PushError", "PushRefused", "Pusher"]

R = TypeVar("R")


class Pusher:
    """As `AsyncPusher`, for code that waits by itself.  Any threads may share one.  It has a thread of its own."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        stream: str,
        *,
        certificates: tuple[str, str] | None = None,
        patience_s: float = PUSH_PATIENCE_S,
    ) -> None:
        self._inner = AsyncPusher(addresses, stream, certificates=certificates, patience_s=patience_s)
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Pusher:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="millwheel-push", daemon=True)
        self._thread.start()
        self._wait(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._wait(self._inner.__aexit__(kind, error, trace))
        finally:
            loop = self._loop
            if loop is not None:
                self._wait(_rest())
                self._loop = None
                loop.call_soon_threadsafe(loop.stop)
                self._thread.join()
                loop.close()

    def push(self, id: str | bytes, value: bytes, time: Time) -> None:
        """See `AsyncPusher.push`."""
        self.push_many([(id, value, time)])

    def push_many(self, records: Iterable[tuple[str | bytes, bytes, Time]]) -> None:
        """See `AsyncPusher.push_many`.  It is much faster than as many calls of `push`."""
        self._wait(self._inner.push_many(records))

    def flush(self) -> None:
        """See `AsyncPusher.flush`."""
        self._wait(self._inner.flush())

    def _wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        if self._loop is None:
            coroutine.close()
            raise PushError("a pusher is used within its block: with Pusher(...) as pusher")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


async def _rest() -> None:
    """End what the channel has left: a task of a closed loop would be complained about."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
