"""Repeats a call to the store until the store answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millwheel.errors import CommitUnknown, StoreUnavailable
from millwheel.limits import STORE_RETRY_DELAY_S

logger = logging.getLogger("millwheel")


T = TypeVar("T")


async def until_answered(what: str, call: Callable[[], Awaitable[T]]) -> T:
    """Do an idempotent operation again until the store answers."""
    while True:
        try:
            return await call()
        except (StoreUnavailable, CommitUnknown) as error:
            logger.warning("%s: %s; trying again", what, error)
            await asyncio.sleep(STORE_RETRY_DELAY_S)
