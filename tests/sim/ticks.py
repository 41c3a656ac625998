"""Timers that set timers: what the hooks of a window's end do, and the order in which all of it must fire.

Each firing follows a plan that depends on nothing but the key, the tag and the time.  So the order of the firings of a
key is known from its windows alone, however far the watermark jumped: the earliest of what is pending, by time and then
by tag, fires next.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

Setting = tuple[str, int | None]
"""A tag, and the time to set it to, us; None: cancelled."""

STEPS_US = (0, 10_000, 70_000, 150_000)
STRIDE_US = 3_000
STRIDES = 40
"""Firings of one tag that gets further each time: more than a loop may have."""


def plan(key: str, tag: str, at: int) -> list[Setting]:
    """What the hook of a timer sets: windows are "w<end>", and the others have the window's end behind a letter."""
    kind, name = tag[0], tag[1:]
    if kind == "w":
        return _at_the_end(_draw(key, name) % 7, name, at)
    draw = _draw(key, name.split(".")[0])
    if kind == "t":
        end, number = name.split(".")
        if int(number) < draw // 7 % 12:
            return [(f"t{end}.{int(number) + 1}", at + STEPS_US[draw // 91 % 4])]
    elif kind == "s":
        return [(tag, at + STRIDE_US)] if at < int(name) + STRIDES * STRIDE_US else []
    elif kind == "c":
        return [(f"d{name}", None)]
    elif kind == "m":
        return [(f"d{name}", at + (10_000 if draw % 7 == 2 else 240_000))]
    return []


def _at_the_end(kind: int, name: str, at: int) -> list[Setting]:
    if kind == 0:  # a chain, which may cross the ends of later windows
        return [(f"t{name}.0", at + 30_000)]
    if kind == 1:  # one that is cancelled before it fires
        return [(f"d{name}", at + 60_000), (f"c{name}", at + 30_000)]
    if kind == 2:  # one that is moved to an earlier time
        return [(f"d{name}", at + 90_000), (f"m{name}", at + 30_000)]
    if kind == 3:  # at its own time, the first in the order of tags last
        return [(f"x{name}", at), (f"b{name}", at), (f"a{name}", at)]
    if kind == 4:  # one that is moved to a later time
        return [(f"d{name}", at + 20_000), (f"m{name}", at + 10_000)]
    if kind == 5:
        return [(f"s{name}", at + STRIDE_US)]
    return []


def _draw(key: str, name: str) -> int:
    return zlib.crc32(f"{key} {name}".encode())


def digest(before: list[int], tag: str, at: int) -> list[int]:
    """How many timers have fired, and a number that depends on which, and in which order."""
    count, number = before
    return [count + 1, zlib.crc32(f"{tag} {at}".encode(), number)]


def digest_of(key: str, ends: Iterable[int]) -> list[int]:
    """The digest of all firings of a key that has windows with these ends."""
    pending = {f"w{end}": end for end in ends}
    found = [0, 0]
    while pending:
        at, tag = min((at, tag) for tag, at in pending.items())
        del pending[tag]
        found = digest(found, tag, at)
        for name, setting in plan(key, tag, at):
            if setting is None:
                pending.pop(name, None)
            else:
                pending[name] = setting
    return found
