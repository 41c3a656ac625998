"""What is hosted on Spark, and how: a value that the driver's parts share."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec

from millwheel.host.over import Tolerance

logger = logging.getLogger("millwheel")

Say = Callable[[str, bool, str], None]
"""Takes whose line it is, whether it is of something wrong, and the line."""


def log_line(name: str, is_wrong: bool, line: str) -> None:
    """Say it in the log."""
    logger.log(logging.WARNING if is_wrong else logging.INFO, "%s | %s", name, line)


def heard_or_not(say: Say) -> Say:
    """The same where whoever reads what is said may go, as `head` does: no thread that keeps a cluster ends because of it."""

    def said(name: str, is_wrong: bool, line: str) -> None:
        with suppress(OSError):
            say(name, is_wrong, line)

    return said


class HostingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is hosted, and how."""

    path: str
    """module:attribute of the pipeline."""
    url: str
    """Of the store, as executors reach it."""
    controllers: int = 1
    """How many the driver has; 0: they run elsewhere."""
    options: tuple[str, ...] = ()
    """Of every process, such as --lease."""
    allowed: Tolerance = Tolerance()
    """What the whole run may leave over."""
    certs: str | None = None
    """The directory of certificates, the same on every machine."""
    py_files: tuple[str, ...] = ()
    cache_bytes: int | None = None
    """Memory of each worker for state of keys, as `launch.run` has it."""

    def label(self) -> str:
        """How the names of workers begin: when others may be there already, by something that those do not have."""
        return "worker" if self.controllers else f"worker-{uuid.uuid4().hex[:4]}"
