"""How much memory this process may use, and what of it is for state of keys.

Lives here: what the machine says.  Never here: who gets what (`millwheel.host.cache_shares`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from millwheel.limits import CACHE_LEAST_BYTES, CACHE_SHARE

ROOT = Path("/")

logger = logging.getLogger("millwheel")


def granted(asked: int | None) -> int:
    """What a process has for state of keys: what it is told, or the default.  The log has it."""
    found = cache_bytes() if asked is None else asked
    logger.info("state of keys may take %s MiB of memory", f"{found >> 20:,}", extra={"facts": {"cache_bytes": found}})
    return found


def cache_bytes(processes: int = 1) -> int:
    """What one of so many like `processes` of this machine may have for state of keys when nobody says how much."""
    return max(CACHE_LEAST_BYTES, memory_bytes() // CACHE_SHARE // processes)


def memory_bytes(root: Path = ROOT) -> int:
    """What this process may use: what its control groups allow, as in a container, or else what the machine has.

    `root` has the file systems proc and sys.  It is 0 where neither is said.
    """
    return min([*_allowed(root), *_physical()], default=0)


def _physical() -> Iterator[int]:
    with suppress(OSError, ValueError):  # some systems do not say
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _allowed(root: Path) -> Iterator[int]:
    """The limits of the control groups of this process, and of those above them."""
    groups = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds:
            yield from _limits(groups, path, "memory.max")
        elif "memory" in kinds.split(","):
            yield from _limits(groups / "memory", path, "memory.limit_in_bytes")


def _limits(groups: Path, path: str, file: str) -> Iterator[int]:
    """In a container the path may be that of the machine outside, and its group is the top one."""
    group = groups / path.strip("/")
    for place in dict.fromkeys([group, *group.parents, groups]):
        if place.is_relative_to(groups) and (said := _read(place / file).strip()).isdecimal():
            yield int(said)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
