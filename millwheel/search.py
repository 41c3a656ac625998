"""What a source asks for while it searches for partitions, and the signs by which a finished one is recognised (§5.2).

Lives here: the steps of a search, as plain values.  Never here: performing them, which the runtime and the simulator do.
Invariant: the memory of a search does not grow with what is finished, because the store is asked about that in bulk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from millwheel.ids import IntervalId

if TYPE_CHECKING:
    from millwheel.source import SourcePartition


class GiveWay(msgspec.Struct, frozen=True):
    """Let others have a turn: the search has run for a millisecond or so, and goes on.  No answer."""


class BlockingCall(msgspec.Struct, frozen=True):
    """A call that may take long.  It runs beside the event loop; the answer is what it returns."""

    call: Callable[[], Any]


class Unknown(msgspec.Struct, frozen=True):
    """The answer is the set of those signs that no finished partition of the source has."""

    signs: Sequence[bytes]


class Find(msgspec.Struct, frozen=True):
    """The answer is a list of `SourcePosition`: the partitions of the source that have one of the signs or names."""

    signs: Sequence[bytes] = ()
    names: Sequence[str] = ()


class MoreSigns(msgspec.Struct, frozen=True):
    """Further signs of finished partitions, by interval: they have another place now, for example.  No answer."""

    signs: Mapping[IntervalId, Sequence[bytes]]


Step: TypeAlias = GiveWay | BlockingCall | Unknown | Find | MoreSigns

Search: TypeAlias = "Generator[Step, Any, list[SourcePartition]]"
"""One look for partitions: it yields steps, is sent their answers, and returns what it found."""


def sign(*parts: str | int) -> bytes:
    """16 bytes that stand for `parts`, the first of which says what kind of sign it is.

    >>> sign("path", "a.log") == sign("path", "a.log") != sign("path", "b.log")
    True
    """
    return blake2b("\0".join(map(str, parts)).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def alone(search: Search) -> list[SourcePartition]:
    """What a search finds when nothing is finished: without a store, to try a source out."""
    answer: Any = None
    while True:
        try:
            step = search.send(answer)
        except StopIteration as end:
            found: list[SourcePartition] = end.value
            return found
        match step:
            case BlockingCall(call):
                answer = call()
            case Unknown(signs):
                answer = {*signs}
            case Find():
                answer = []
            case _:
                answer = None
