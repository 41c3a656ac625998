"""Records and timers that may have ended the process: those that ran when it ended, and how often.

Lives here: which invocations are marked in the store before they run, what a mark that was found at a start says, what
must run alone, and what must not run again.  Never here: I/O.  The host makes a mark durable before the hook runs, and
keeps everything else from running while a suspect runs alone.

A process that ends in order says so in the store.  Any other end is a crash in native code, a lack of memory or kill -9.
After such an end, each of the next invocations is marked before it runs.  It has no more records than can be tried one by
one.  If that process dies too, what was marked is suspected and runs alone, one record or timer at a time.  What ran alone
in `limits.DEATHS_LIMIT` processes that died goes to its key's quarantine without being run again.

A record that ran when the process was killed from outside is suspected in vain.  It runs alone once and is cleared.  What
was committed just before the end is suspected too and never comes again.  So suspicion must not slow anything else down:
other records of the key and timers run as usual.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import msgspec

from millwheel import limits
from millwheel.bundles import QuarantineEntry
from millwheel.ids import SubscriptionId
from millwheel.limits import SUSPECT_WIDENINGS
from millwheel.work import BundlePart, Work

Unit = tuple[str, bytes]
"""What one call of a hook is about: the key, and a digest of the record or timer.  A record's id would not do, because
a weak production is sent under another id after a restart."""


class Suspicion(msgspec.Struct, array_like=True):
    """What the store keeps of an interval, as msgpack."""

    deaths: list[tuple[str, bytes, int]] = []
    """Suspects, and how often the process died while they ran alone."""
    running: list[Unit] = []
    alone: bool = False


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Suspicion)


def read_mark(stored: bytes) -> Suspicion:
    """What a mark says; none says nothing."""
    return _decoder.decode(stored) if stored else Suspicion()


def unite_marks(marks: Iterable[bytes]) -> bytes:
    """A mark of an interval that suspects whatever one of these does."""
    united: dict[Unit, int] = {}
    for stored in marks:
        for unit, count in _deaths(read_mark(stored)).items():
            united[unit] = max(count, united.get(unit, 0))
    return _encoder.encode(Suspicion([(*unit, count) for unit, count in sorted(united.items())])) if united else b""


def _deaths(found: Suspicion) -> dict[Unit, int]:
    """Suspects, and in how many processes that died they ran alone."""
    deaths = {(key, digest): count for key, digest, count in found.deaths}
    for unit in found.running:
        deaths[unit] = deaths.get(unit, 0) + found.alone
    return deaths


class Suspects:
    """The suspicions about one interval's records and timers.

    `ends` is how often in a row the process that had the interval did not end in order, `stored` what its mark says.
    """

    def __init__(self, ends: int = 0, stored: bytes = b"") -> None:
        self._suspected: dict[Unit, int] = {}
        self._condemned: dict[Unit, int] = {}
        self._left = limits.MARKED_INVOCATIONS * 4 ** min(ends - 1, SUSPECT_WIDENINGS) if ends else 0
        self.running: list[Unit] = []
        """What was marked and runs now."""
        self._marked = False
        """The store holds a mark of this process."""
        self.alone = False
        """What runs now is a suspect, by itself."""
        self._suspect(read_mark(stored))
        self._index()

    def _suspect(self, found: Suspicion) -> None:
        for unit, count in _deaths(found).items():
            (self._condemned if count >= limits.DEATHS_LIMIT else self._suspected)[unit] = count

    def _index(self) -> None:
        self._keys = {key for key, _ in self._suspected}
        self._condemned_keys = {key for key, _ in self._condemned}

    def __bool__(self) -> bool:
        """Whether anything must not run."""
        return bool(self._condemned)

    @property
    def watching(self) -> bool:
        """Whether the next invocation is marked."""
        return self._left > 0

    # --- what runs together ------------------------------------------------------------------------------------

    def limit(self, records: int) -> int:
        """Records of the next invocation, where `records` would be usual."""
        return min(records, limits.MARKED_RECORDS) if self._left else records

    @property
    def some(self) -> bool:
        """Whether anything is suspected."""
        return bool(self._suspected)

    def room(self, part: BundlePart | None, records: int, begun: bool) -> int:
        """How many records of `part` fit into the next invocation.

        It has room for `records` more, and `begun` says whether it has any already.  A suspect runs by itself.  Other records
        of its key run together, because the key may be a hot one.
        """
        if part is not None and self._keys:
            for place in range(min(records, len(part.keys))):
                if self.suspects(part, place):
                    return place or (0 if begun else 1)
        return records

    def suspects(self, part: BundlePart, place: int) -> bool:
        """Whether this record is suspected."""
        key = part.keys[place]
        if key not in self._keys:
            return False
        return (key, _digest(part.subscription, part.timestamps[place], part.values[place])) in self._suspected

    def suspects_timer(self, kind: str, timestamp: int, name: tuple[str, str]) -> bool:
        """Whether this timer is suspected."""
        key, tag = name
        return key in self._keys and (key, _timer_digest(tag, kind, timestamp)) in self._suspected

    # --- what must not run -------------------------------------------------------------------------------------

    def untouched(self, keys: Iterable[str]) -> bool:
        """True when nothing of `keys` is kept from running."""
        return self._condemned_keys.isdisjoint(keys)

    def answer(self, entry: QuarantineEntry) -> str | None:
        """Why a record or timer must not run; None when it may."""
        if entry.key not in self._condemned_keys:
            return None
        deaths = self._condemned.get(_unit(entry))
        if deaths is None:
            return None
        return (
            f"the process ended {deaths} times while this {'timer' if entry.is_timer else 'record'}, and nothing "
            "else, ran: a crash in native code, too much memory, sys.exit(), or a kill from outside. Mend it, stop the "
            "pipeline in order (Ctrl-C) and start it again, then redrive the key"
        )

    def before_condemned(self, entries: list[QuarantineEntry]) -> list[QuarantineEntry]:
        """The first elements of a key's FIFO that may be redriven together."""
        if not entries:
            return entries
        if entries[0].key in self._condemned_keys:
            places = (place for place, entry in enumerate(entries) if self.answer(entry) is not None)
            entries = entries[: next(places, len(entries))]
        places = (place for place, entry in enumerate(entries) if _unit(entry) in self._suspected)
        return entries[: max(1, next(places, len(entries)))]

    def notes(self) -> list[str]:
        """For whoever starts the process: what is suspected, and what is kept from running."""
        found = []
        if self._suspected:
            found.append(
                f"the last process did not end in order: {len(self._suspected)} records or timers that may have ended it "
                "run one by one"
            )
        found += [
            f"key {key!r}: the process ended {deaths} times while a record or timer of it ran alone; it is in quarantine, "
            "and not redriven before the pipeline was stopped in order (Ctrl-C) and started again"
            for (key, _), deaths in sorted(self._condemned.items())
        ]
        return found

    # --- marks -------------------------------------------------------------------------------------------------

    def begin(self, work: Work) -> bytes | None:
        """What must be durable before `work` runs; None when it may run at once."""
        if not self._left:
            return None
        units = _units(work)
        if not units:
            return None
        self._left -= 1
        self.running, self._marked = units, True
        self.alone = len(units) == 1 and units[0] in self._suspected
        return self.encoded()

    def done(self) -> bytes | None:
        """The hooks have run.  Returns the mark that the store must hold from now on, or None when it may stay."""
        running, self.running = self.running, []
        if self.alone:
            self.alone = False
            self._suspected.pop(running[0], None)
        elif self._left or not self._marked:
            return None  # the next mark says it
        if not self._left:
            self._marked = False
            self._suspected.clear()
        self._index()
        return self.encoded()

    def interrupted(self) -> Suspects:
        """The invocation that was to run, or ran, is void, and so is its mark."""
        self.running, self.alone = [], False
        return self

    def encoded(self) -> bytes:
        """What the store should hold now."""
        deaths = [(*unit, count) for known in (self._suspected, self._condemned) for unit, count in known.items()]
        return _encoder.encode(Suspicion(deaths, self.running, self.alone))


def _units(work: Work) -> list[Unit]:
    units = [
        (key, _digest(part.subscription, timestamp, value))
        for part in work.parts
        for key, timestamp, value in zip(part.keys, part.timestamps, part.values, strict=True)
    ]
    units += [(timer.key, _timer_digest(timer.tag, timer.kind, timer.timestamp)) for timer in work.timers]
    units += [_unit(entry) for entry in work.redrive]
    return list(dict.fromkeys(units))


def _unit(entry: QuarantineEntry) -> Unit:
    if entry.is_timer:
        return entry.key, _timer_digest(entry.tag, entry.kind, entry.timestamp)
    return entry.key, _digest(entry.subscription, entry.timestamp, entry.value)


def _timer_digest(tag: str, kind: str, timestamp: int) -> bytes:
    return _digest(SubscriptionId(-1), timestamp, f"{kind} {tag}".encode())


def _digest(subscription: SubscriptionId, timestamp: int, value: bytes) -> bytes:
    salt, person = b"%x" % (subscription % 2**32), b"%x" % (timestamp % 2**64)
    return blake2b(value, digest_size=8, salt=salt, person=person).digest()
