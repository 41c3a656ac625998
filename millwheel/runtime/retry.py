"""Repeats a call to the store until the store answers.

Lives here: waiting for the store, and what is said of it.  Never here: what is called.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millwheel.errors import CommitUnknown, StoreUnavailable
from millwheel.limits import STORE_RETRY_DELAY_S, WARNING_DELAY_S

logger = logging.getLogger("millwheel")

T = TypeVar("T")


class Retries:
    """The tries of one process.

    Five tries a second of each interval would bury the one line that says why: a failure is told when it is new, and every
    `WARNING_DELAY_S` while it goes on.  Numbers in its text are no difference.
    """

    def __init__(self) -> None:
        self._said: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    async def until_answered(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do an idempotent operation again until the store answers."""
        while True:
            try:
                return await call()
            except (StoreUnavailable, CommitUnknown) as error:
                self._failed(f"{what}: {' '.join(str(error).split())}", time.monotonic())
                await asyncio.sleep(STORE_RETRY_DELAY_S)

    def _failed(self, text: str, now_s: float) -> None:
        kind = re.sub(r"\d+", "", text)
        self._said = {known: at_s for known, at_s in self._said.items() if now_s - at_s < WARNING_DELAY_S}
        if kind in self._said:
            self._unsaid[kind] += 1
            return
        self._said[kind] = now_s
        more = self._unsaid.pop(kind, 0)
        logger.warning("%s; trying again%s", text, f" (and {more} times before)" if more else "")
