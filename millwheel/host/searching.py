"""A search for partitions of one source: what the source asks is put to the store.

Lives here: one round of discovery.  Never here: what becomes of the partitions that are found (`partitions`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from millwheel.host.alphabet import Discover, Discovery, Pause, Seek, Wish
from millwheel.host.requests import AddSigns, FindPartitions, UnknownSigns
from millwheel.ports import SourcePosition
from millwheel.search import Find, GiveWay, MoreSigns, Step, Unknown


def search(
    source: str, earlier: tuple[SourcePosition, ...] | None, stir: Callable[[], None]
) -> Generator[Wish, Any, Discovery]:
    """One search.  `earlier` are partitions of earlier runs, in the first one.

    Calls `stir` when the source has seen something that is known already: it has changed, though nothing new came of it.
    """
    step: Step | Discovery = yield Discover(source, earlier)
    while not isinstance(step, Discovery):
        answer = yield from _look_up(source, step, stir)
        step = yield Seek(source, answer)
    return step


def _look_up(source: str, step: Step, stir: Callable[[], None]) -> Generator[Wish, Any, Any]:
    match step:
        case GiveWay():
            return (yield Pause(0))
        case Unknown(signs):
            unknown = yield UnknownSigns(source, signs)
            if len(unknown) < len({*signs}):
                stir()
            return unknown
        case Find(signs, names):
            return (yield FindPartitions(source, signs, names))
        case MoreSigns(noted):
            return (yield AddSigns(source, noted))
        case _:
            raise AssertionError(f"a shell left {type(step).__name__} of a search to its host")
