"""What takes long in the file system, beside the event loop.

Lives here: a thread for one call.  Never here: what is called.  Invariant: neither the end of the loop nor the end of the
process waits for a call, because a file system that does not answer may keep it for ever.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from millwheel import limits

R = TypeVar("R")

logger = logging.getLogger("millwheel")


async def in_thread(what: str, function: Callable[..., R], *given: object) -> R:
    """What `function` gives or raises; that it takes long is said, with `what`, and again after twice the time."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[R] = loop.create_future()

    def work() -> None:
        try:
            found = function(*given)
        except StopIteration as error:  # no future takes it
            _tell(loop, _failed, answer, RuntimeError(f"{what} has raised {error!r}"))
        except BaseException as error:
            _tell(loop, _failed, answer, error)
        else:
            _tell(loop, _done, answer, found)

    threading.Thread(target=work, name="millwheel-search", daemon=True).start()
    began, wait_s = loop.time(), limits.LONG_CALL_S
    while not (await asyncio.wait([answer], timeout=wait_s))[0]:
        logger.warning("%s has run for %.0f s: do its files answer?", what, loop.time() - began)
        wait_s = 2 * wait_s
    return answer.result()


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *given: object) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(call, *given)


def _done(answer: asyncio.Future[R], found: R) -> None:
    if not answer.done():
        answer.set_result(found)


def _failed(answer: asyncio.Future[object], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
