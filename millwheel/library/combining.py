"""A combiner gathers the records of one hot key under several keys first.  Only their sums meet under the key itself.

Lives here: how an aggregation becomes two.  Invariants: the panes at the watermark are those without a combiner, but for
their number.  With early panes that discard, the pane at the watermark holds what none of these has held.  The second of
the two has the state that the only one without it has, so a combiner may come and go
(docs/adr/0048-a-combiner-of-the-library-comes-and-goes.md).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

import msgspec

from millwheel.api.stream import Stream
from millwheel.coders import Coder, reads_of
from millwheel.errors import WiringError
from millwheel.library.aggregations import Aggregation, aggregation
from millwheel.library.expected import check_function
from millwheel.library.firing import Firing
from millwheel.library.handed_back import windows_of_parts
from millwheel.library.panes import Pane
from millwheel.library.triggers import AtWatermark, EveryRecords
from millwheel.library.windowed import aggregate, meaning_of
from millwheel.library.windows import Aligned, Sliding, Windows
from millwheel.library.wiring import KeyOf, Port, meant
from millwheel.model import MAX_TIME
from millwheel.shape import BEFORE_SHARD, CombinedBy

if TYPE_CHECKING:
    from millwheel.library.flow import Chain
    from millwheel.library.keyed import KeyedChain

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")


class Combiner(msgspec.Struct, frozen=True):
    """`shards` keys in front of each key; `by` says which value goes to which, by default a checksum of all of it."""

    shards: int
    by: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if type(self.shards) is not int or self.shards < 2:
            raise WiringError(f"Combiner(shards={self.shards!r}): give a number of shards, at least 2")
        check_function(self.by, "Combiner")

    def spread(self, key: KeyOf) -> KeyOf:
        """`key` with the number of the shard behind it."""
        encode = msgspec.msgpack.Encoder(order="deterministic").encode
        by, shards = self.by, self.shards

        def sharded(value: Any) -> str | None:
            whole = key(value)
            if whole is None:
                return None
            return f"{whole}{BEFORE_SHARD}{crc32(encode(value if by is None else by(value))) % shards}"

        return sharded


def _whole_key(pane: Pane[bytes]) -> str:
    return pane.key.rpartition(BEFORE_SHARD)[0]


def combined(
    keyed: KeyedChain[T],
    windows: Windows,
    firing: Firing,
    whole: Aggregation[T, A, R],
    name: str | None,
    dropped: Stream[Any] | None,
    combiner: Combiner,
) -> Chain[Pane[R]]:
    """`whole` in two steps, `name`.parts and `name`; an early pane then comes with what each shard has gathered."""
    if name is None:
        raise WiringError(
            "an aggregation with a combiner is two steps: give it name=...; one that has run without a name and a combiner "
            "is called by the stream in which it ends and what it does, for example name='panes.count'"
        )
    if not isinstance(windows, Aligned):
        raise WiringError(
            f"{name!r} cannot have a combiner: where such a window ends, only all records of the key together say"
        )
    if not firing.on_time:
        raise WiringError(
            f"{name!r} has a combiner, which needs the trigger AtWatermark: a shard cannot know what the others have gathered"
        )
    if firing.holds:
        raise WiringError(
            f"{name!r} has a combiner, so its panes have the last instant of their window as their event time: leave out "
            "time=, or the combiner"
        )
    parts: Aggregation[Any, A, bytes] = _parts(whole)
    shards = f"{combiner.shards} shards"
    ports = [
        Port(
            port.feed,
            combiner.spread(port.key),
            key_version=f"{port.key_version} in {shards}" if port.key_version else shards,
        )
        for port in keyed.ports()
    ]
    # Keys of shards begin with the key that they are of, so the split keys hold for them as well.
    by = CombinedBy(f"{name}.parts", "", f"{BEFORE_SHARD}0")
    gathered = keyed.read_by(aggregate(*_in_front(windows, firing), parts, dropped), ports, by.parts)
    early = None if firing.early is None else EveryRecords(1)
    panes = Firing(AtWatermark(early, firing.late), firing.lateness, firing.panes, firing.time)
    second = aggregate(windows, panes, merging(whole, windows, panes))
    second = replace(second, settings={**second.settings, "combiner": by})
    return gathered.key_by(_whole_key, keyed.split_keys).apply(second, name)


def _in_front(windows: Windows, firing: Firing) -> tuple[Windows, Firing]:
    """The windows of the parts, and when these come."""
    if isinstance(windows, Sliding):
        return windows_of_parts(windows), _OfSlices(windows, firing)
    late = None if firing.late is None else EveryRecords(1)
    return windows, Firing(AtWatermark(firing.early, late), firing.lateness, "discarding", "end")


class _OfSlices(Firing):
    """A slice takes records as long as a window that holds it does: what is late for it may be in time for the last ones."""

    def __init__(self, windows: Sliding, firing: Firing) -> None:
        self._windows, self._lateness = windows, firing.lateness
        longest = firing.lateness + windows.size - windows.slice_us
        super().__init__(AtWatermark(firing.early, EveryRecords(1)), longest, "discarding", "end")

    def over_at(self, end: int) -> int:
        """Of the slice that ends there."""
        last = self._windows.end(self._windows.starts(end - 1)[-1])
        return min(last + self._lateness, MAX_TIME - 1)


def _parts(whole: Aggregation[T, A, R]) -> Aggregation[T, A, bytes]:
    """As `whole`, with encoded accumulators as its results."""
    made: Aggregation[T, A, bytes] = _Parts(whole) if type(whole).add_at is not Aggregation.add_at else aggregation(
        f"{whole.name} in parts", whole.zero, whole.add, whole.merge, whole.accumulator.encode, whole.accumulator, bytes
    )  # fmt: skip
    return made


class _Parts(Aggregation[T, A, bytes]):
    """The same for an aggregation that looks at event time."""

    def __init__(self, whole: Aggregation[T, A, Any]) -> None:
        self._whole = whole
        self.name, self.accumulator, self.results = f"{whole.name} in parts", whole.accumulator, bytes
        self.__dict__.update(zero=whole.zero, merge=whole.merge, result=whole.accumulator.encode)

    def add_at(self, accumulator: A, value: T, timestamp: int) -> A:
        """As the whole does."""
        return self._whole.add_at(accumulator, value, timestamp)


def merging(whole: Aggregation[T, A, R], windows: Windows, firing: Firing) -> Aggregation[Pane[bytes], A, R]:
    """The aggregation of the parts; what it stores is what `whole` stores without a combiner."""
    coder: Coder[A] = copy(whole.accumulator)
    # A store that was written before a combiner could come or go says that it is something else.
    earlier = meant(whole.accumulator, f"{whole.name} of parts of {meaning_of(windows, firing)}")
    vars(coder)["reads"] = (*reads_of(coder), earlier.fingerprint)

    def add(accumulator: A, pane: Pane[bytes]) -> A:
        return whole.merge(accumulator, coder.decode(pane.value))

    made = aggregation(
        whole.name, whole.zero, add, whole.merge, whole.result, coder, whole.results,
        whole.subtract if whole.subtracts else None, bounded=whole.bounded,
    )  # fmt: skip
    made.__dict__.update(merge_all=whole.merge_all, of_parts=True)
    return made
