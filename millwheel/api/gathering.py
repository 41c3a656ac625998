"""A combiner for a computation of the user: values of one key are merged under several keys before the hook sees them.

Lives here: `Gathering`, and the computation that merges.  Never here: what the hook makes of a merged value.  Invariants:

* each value is in exactly one merged one, which is at the time of its oldest;
* the watermark waits for what is being gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar
from zlib import crc32

import msgspec

from millwheel import limits
from millwheel.api.computation import Computation
from millwheel.api.context import Context
from millwheel.api.state import MapCell
from millwheel.api.stream import Stream
from millwheel.coders import Coder
from millwheel.errors import CoderError, WiringError
from millwheel.graph import KeyExtractor
from millwheel.model import Record, Timer, whole_time
from millwheel.shape import BEFORE_KEY, GATHERED_TIME, CombinedBy

V = TypeVar("V")

_TIMER: Final = "give"


class Gathering(msgspec.Struct, Generic[V], frozen=True):
    """`merge` makes one value of two of the same key.  It must be associative and commutative, and keep the key.

    Values of a key are merged under `shards` keys first.  `by` says which value goes to which, by default a checksum of all
    of it: values that are equal go to the same.  A merged value is given after `every` (us, or a timedelta) of wall time, at
    the time of its oldest value.  With `within`, only values of the same stretch of event time are merged, counted from
    1970: for a hook that sorts records into hours, `timedelta(hours=1)`.
    """

    merge: Callable[[V, V], V]
    shards: int = 8
    by: Callable[[V], Any] | None = None
    every: timedelta | int = limits.MERGE_EVERY_US
    within: timedelta | int | None = None

    def __post_init__(self) -> None:
        if not callable(self.merge):
            raise WiringError(f"Gathering(merge={self.merge!r:.80}): give a function that makes one value of two")
        if self.by is not None and not callable(self.by):
            raise WiringError(f"Gathering(by={self.by!r:.80}): give a function of a value")
        if type(self.shards) is not int or not 2 <= self.shards <= limits.MERGE_SHARDS:
            raise WiringError(f"Gathering(shards={self.shards!r:.80}): give a number from 2 to {limits.MERGE_SHARDS}")
        for name, value in (("every", self.every), ("within", self.within)):
            if value is not None and not 0 < _us(value, name) <= limits.MERGE_LONGEST_US:
                raise WiringError(f"Gathering({name}={value!r:.80}): give a time from 1 us to a year")

    def split_keys(self) -> tuple[str, ...]:
        """An interval for each shard, which may lie on any worker."""
        return tuple(map(_prefix, range(1, self.shards)))

    def combined_by(self, name: str) -> CombinedBy:
        """The combiner of the computation `name`, as its store knows it."""
        return CombinedBy(f"{name}.parts", _prefix(0))

    def spread(self, key: KeyExtractor, coder: Coder[V]) -> KeyExtractor:
        """`key` with the number of the shard before it."""
        encode, by, shards = msgspec.msgpack.Encoder(order="deterministic").encode, self.by, self.shards

        def sharded(value: Any) -> str | None:
            whole = key(value)
            if whole is None:
                return None
            data = coder.encode(value) if by is None else encode(by(value))
            return f"{_prefix(crc32(data) % shards)}{whole}"

        return sharded


def _us(given: timedelta | int, name: str) -> int:
    if isinstance(given, timedelta):
        return given // timedelta(microseconds=1)
    return whole_time(given, f"Gathering({name}=…)")


def _prefix(shard: int) -> str:
    """Before the key, so that split keys can give each shard an interval of its own, whatever the keys are."""
    return f"{shard:03d}{BEFORE_KEY}"


class _Aged(Generic[V]):
    """A merged value, and the time of its oldest."""

    def __init__(self, coder: Coder[V]) -> None:
        self._coder = coder
        self.fingerprint = f"{coder.fingerprint} with a time"

    def encode(self, value: tuple[int, V], /) -> bytes:
        """The time, and the value as its stream has it."""
        return GATHERED_TIME.pack(value[0]) + self._coder.encode(value[1])

    def decode(self, data: bytes, /) -> tuple[int, V]:
        """Both."""
        if len(data) < GATHERED_TIME.size:
            raise CoderError(f"{self.fingerprint}: {len(data)} bytes hold no time")
        return GATHERED_TIME.unpack_from(data)[0], self._coder.decode(data[GATHERED_TIME.size :])


class Gatherer(Computation[V]):
    """Merges what comes for one shard of one key, and gives it now and then.  A subclass has the cell `parts`."""

    parts: MapCell[tuple[int, V]]

    def __init__(self, gathering: Gathering[V], key: KeyExtractor, into: Stream[V]) -> None:
        self._merge = gathering.merge
        self._every_us = _us(gathering.every, "every")
        self._within_us = 0 if gathering.within is None else _us(gathering.within, "within")
        self._key, self._into = key, into

    def ProcessRecord(self, context: Context, record: Record[V]) -> None:
        """One more value."""
        entry = str(record.timestamp // self._within_us) if self._within_us else "0"
        known, value = self.parts.get(entry), record.value
        whole = record.key.partition(BEFORE_KEY)[2]
        if known is not None and self._key(known[1]) != whole:  # a version with other keys has gathered it
            context.produce(self._into, known[1], known[0])
            self.parts.delete(entry)
            known = None
        if known is not None:
            value = self._merge(known[1], value)
            if (made := self._key(value)) != whole:
                raise WiringError(
                    f"merge made a value of key {made!r:.80} of values of key {whole!r:.80}: it must keep the key"
                )
            if known[0] <= record.timestamp:
                self.parts.set(entry, (known[0], value))
                return
        others = [oldest for _, (oldest, _) in self.parts.items()]
        self.parts.set(entry, (record.timestamp, value))
        context.hold(min([record.timestamp, *others]))
        if not others:
            # At times that all records of a while have in common, because a timer that is set again moves.
            context.set_timer(_TIMER, (context.wall_time // self._every_us + 1) * self._every_us, "wall")

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """Give all that was gathered."""
        for entry, (oldest, value) in [*self.parts.items()]:
            context.produce(self._into, value, oldest)
            self.parts.delete(entry)
        context.release_hold()


def gatherer(
    gathering: Gathering[V], key: KeyExtractor, coder: Coder[V], into: Stream[V]
) -> Callable[[], Gatherer[Any]]:
    """Makes computations with a cell for values of `coder`."""

    class Gathered(Gatherer[Any]):
        parts = MapCell(_Aged(coder))

    return lambda: Gathered(gathering, key, into)
