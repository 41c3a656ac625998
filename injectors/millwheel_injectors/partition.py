"""One text file as a partition: rows with numbers, event times, a position that is a seek.

Lives here: the reading loop shared by `FileSource` and Spark's JSON output.  Never here: which files there
are. Invariant: row numbers depend on the file's bytes alone; a state is a place between two raw rows.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from millwheel.errors import SourceError
from millwheel.limits import FILE_HEAD_LIMIT_BYTES, FILE_SCAN_ROWS, RENAMED_LOOKS
from millwheel.model import MAX_TIME
from millwheel.ports import Batch, WallClock
from millwheel_injectors.formats import Format, Parsed
from millwheel_injectors.identity import (
    FoundFile,
    Identity,
    digest_of,
    is_longer,
    rewritten_message,
    tail_fits,
)
from millwheel_injectors.rejects import Reject, Rejects
from millwheel_injectors.streams import GzipStream, LineBuffer, Oversized, PlainStream, open_stream, read_head
from millwheel_injectors.times import EventTime, stamp
from millwheel_injectors.watermarks import BoundedDisorder, Exact, FileCreation, Gauge, Minima, Policy

T = TypeVar("T")

STATE_VERSION: Final = 1


class FileState(msgspec.Struct):
    """A position in a text file, as stored (JSON)."""

    version: int
    identity: Identity
    row: int
    seen: int | None = None
    memory: Any = None
    created: int | None = None


class Reading(msgspec.Struct):
    """How a source reads its files."""

    format: Format
    event_time: EventTime | None
    policy: Policy
    rejects: Rejects
    clock: WallClock
    tail: bool = False


def decode_state(state: bytes) -> FileState:
    """The stored position; `SourceError` when it is not one of ours."""
    try:
        decoded = msgspec.json.decode(state, type=FileState)
    except msgspec.MsgspecError as error:
        raise SourceError(f"stored source position is not a file position: {error}: {state!r:.200}") from error
    if decoded.version != STATE_VERSION:
        raise SourceError(f"stored source position has version {decoded.version}, this release reads {STATE_VERSION}")
    return decoded


class TextPartition:
    """One text file.  `place` finds it now (it may have been renamed); `sealed` says that a quiet file is
    finished."""

    def __init__(
        self,
        name: str,
        identity: Identity,
        reading: Reading,
        place: Callable[[], Path],
        sealed: Callable[[str, int], bool] = lambda name, modified_us: False,
    ) -> None:
        self.name = name
        self.identity = identity
        self._reading = reading
        self._place = place
        self._sealed = sealed
        self._gauge = Gauge(reading.policy)
        self._created: int | None = None
        self._muted = False
        self._bad: list[int] = []
        """Raw rows of the last batch that were rejected."""
        self._known_at = (identity.path, identity.inode)
        """Where the file was when its last state was made."""
        self._met: FoundFile | None = None
        """What the last search has found in place of the open file, until it is looked into."""
        self._looked: bytes | None = None
        """See `FoundFile.look`: the last one that was looked into."""
        self._rewind()

    def meet(self, file: FoundFile) -> None:
        """A search has found the file, which may be a copy of the one that is open."""
        self._met = file

    def _rewind(self) -> None:
        self._row = 0
        self._offset = 0
        self._parser = self._reading.format.parser()
        self._buffer: LineBuffer | None = None
        self._final = False
        self._finished = False

    def fingerprint(self) -> bytes:
        """The state before the first row."""
        identity = msgspec.structs.replace(self.identity, offset=0, tail=0, tail_digest="", finished=False, size=-1)
        return msgspec.json.encode(FileState(STATE_VERSION, identity, 0))

    def resume(self, position: int, state: bytes) -> None:
        """Continue at raw row `position`: a seek when `state` was stored with it, else rows are skipped."""
        stored = decode_state(state)
        seeks = position >= stored.row > 0
        place, fits = self._settled(lambda place: self._fits(place, stored.identity, seeks))
        if not fits:
            raise SourceError(rewritten_message(place, stored.identity))
        self.close()
        self._rewind()
        self._created = stored.created
        self._known_at = (stored.identity.path, stored.identity.inode)
        if seeks:
            self._seek(stored)
        self._skip(position, place)

    def _fits(self, place: Path, stored: Identity, seeks: bool) -> bool:
        head = read_head(place)
        return stored.fits(head) and self.identity.fits(head) and (not seeks or tail_fits(place, stored))

    def _settled(self, look: Callable[[Path], T]) -> tuple[Path, T]:
        """Where the file is, and what `look` says of it; both again when it was renamed between the two."""
        place = self._place()
        for _ in range(RENAMED_LOOKS):
            try:
                found = look(place)
            except FileNotFoundError:
                place = self._place()
                continue
            before, place = place, self._place()
            if place == before:
                return place, found
            if isinstance(found, PlainStream | GzipStream):
                found.close()
        raise SourceError(f"{place}: it is renamed again and again while it is opened; start again")

    def _seek(self, stored: FileState) -> None:
        identity = stored.identity
        self._offset = self.identity.offset = identity.offset
        self.identity.tail, self.identity.tail_digest = identity.tail, identity.tail_digest
        self._row = stored.row
        self._parser.memory = stored.memory
        self._gauge.seen = stored.seen

    def _skip(self, position: int, place: Path) -> None:
        self._muted = True
        while self._row < position:
            if self.read(position - self._row) is None:
                raise SourceError(
                    f"{place}: has {self._row} rows, but {position} were read before; restore the file, "
                    "or give rewritten data a new file name"
                )
        self._muted = False

    def _open(self, offset: int) -> LineBuffer:
        self._stream = self._settled(open_stream)[1]
        buffer = self._buffer = LineBuffer(self._stream, offset)
        try:
            if offset:
                self._stream.seek(offset)
        except SourceError:
            self.close()
            raise
        return buffer

    def read(self, limit: int) -> Batch | None:
        """At most `limit` rows; a batch may hold no value at all when every row was blank or malformed."""
        if self._finished:
            return None
        buffer = self._buffer or self._open(self._offset)
        wanted = limit
        while True:
            buffer = self._buffer or buffer
            lines = buffer.peek(wanted)
            if lines:
                final = self._final and len(lines) == buffer.waiting()
                parsed = self._parse(lines, limit, final)
                if parsed.lines:
                    return self._batch(buffer, parsed)
                wanted = 2 * len(lines)
            if len(lines) == buffer.waiting() and not self._more(buffer):
                return self._nothing_more()

    def _nothing_more(self) -> Batch | None:
        """Nothing, unless the file ends and has moved since its last row: then a batch with a state by which it is known."""
        if not self.finished() or self._known_at == (self.identity.path, self.identity.inode):
            return None
        return Batch([], [], [], self._row, self._encoded())

    def _parse(self, lines: list[bytes], limit: int, final: bool) -> Parsed:
        if self._row == 0 and lines[0].startswith(BOM_UTF8) and not isinstance(lines[0], Oversized):
            lines = [lines[0].removeprefix(BOM_UTF8), *lines[1:]]
        try:
            return self._parser.parse(lines, self._row, limit, final)
        except SourceError as error:
            raise SourceError(f"{self._place()}: {error}") from error

    def _more(self, buffer: LineBuffer) -> bool:
        """Read on; at the end of a complete file first make the rest a line, then be finished."""
        if buffer.fill():
            return True
        if self._final:
            self._finished = self.identity.finished = True
            self.close()
            return False
        if self._reading.tail and self._go_on_with_copy(buffer):
            return True
        if self._reading.tail and not self._seal():
            return False
        if not self._stream.whole():
            raise SourceError(f"{self._place()}: truncated gzip: it ends inside a member; restore the file")
        buffer.end()
        self._final = True
        return True

    def _go_on_with_copy(self, buffer: LineBuffer) -> bool:
        """Open the file that has replaced this one, once it has more; else who writes may still have this one open."""
        met, self._met = self._met, None
        if met is None or met.inode == self._stream.inode() or met.look() == self._looked:
            return False
        self._looked = met.look()
        if not is_longer(met.place, self.identity, buffer.unread()):
            return False
        self.close()
        self._open(self._offset)
        return True

    def _seal(self) -> bool:
        return self._stream.whole() and self._sealed(self.name, self._stream.modified_us())

    def _batch(self, buffer: LineBuffer, parsed: Parsed) -> Batch:
        buffer.take(parsed.lines)
        first, self._offset = self._row, buffer.offset
        self._row += len(parsed.raws)
        times = self._times(parsed)
        self._gauge.saw(times)
        if times and self._created is None and isinstance(self._reading.policy, FileCreation):
            self._created = creation_us(self._place(), self._reading.policy, times[0])
        if parsed.rejects and not self._muted:
            rejects = [r._replace(row=first + r.row) for r in parsed.rejects]
            self._reading.rejects.add(self.name, rejects, self.identity.path)
        rows = [first + row for row in parsed.rows]
        self._bad = [first + reject.row for reject in parsed.rejects]
        return Batch(rows, parsed.values, times, self._row, self._state(buffer), len(parsed.rejects))

    def _times(self, parsed: Parsed) -> list[int]:
        """Event times of the values; those that have none become rejects."""
        if self._reading.event_time is None:
            return [self._reading.clock()] * len(parsed.values)
        times, bad = stamp(parsed.values, self._reading.event_time)
        if not bad:
            return times
        rejects = [Reject(parsed.rows[i], why, parsed.raws[parsed.rows[i]]) for i, why in bad.items()]
        parsed.rejects = sorted(parsed.rejects + rejects, key=lambda reject: reject.row)
        kept = [index for index in range(len(times)) if index not in bad]
        parsed.rows = [parsed.rows[index] for index in kept]
        parsed.values = [parsed.values[index] for index in kept]
        return [times[index] for index in kept]

    def _state(self, buffer: LineBuffer) -> bytes:
        identity = self.identity
        identity.offset = buffer.offset
        identity.size, identity.mtime_ns = self._stream.look(buffer.offset)
        identity.tail, identity.tail_digest = len(buffer.tail), digest_of(buffer.tail)
        if identity.head < FILE_HEAD_LIMIT_BYTES and identity.head < buffer.offset:
            self._learn_head()
        return self._encoded()

    def _encoded(self) -> bytes:
        identity = self.identity
        self._known_at = (identity.path, identity.inode)
        state = FileState(STATE_VERSION, identity, self._row, self._gauge.seen, self._parser.memory, self._created)
        return msgspec.json.encode(state)

    def _learn_head(self) -> None:
        """While a file is small, its fingerprint grows with what was read of it."""
        try:
            head = read_head(self._place())[: self.identity.offset]
        except (FileNotFoundError, SourceError):
            return  # renamed or deleted just now: the shorter fingerprint is still true
        if self.identity.fits(head):
            self.identity.head, self.identity.digest = len(head), digest_of(head)

    def finished(self) -> bool:
        """True when the file was read to its end and, tailing, sealed."""
        return self._finished

    def watermark(self) -> int:
        """The policy's promise; `MAX_TIME` when finished."""
        if self._finished:
            return MAX_TIME
        if isinstance(self._reading.policy, Exact) and self._gauge.minima is None:
            self._gauge.minima = self._scan()
        return self.bound()

    def bound(self) -> int:
        """As `watermark`, but when finished what was promised last."""
        policy = self._reading.policy
        if isinstance(policy, FileCreation):
            if self._created is None and policy.created is not None:
                self._created = policy.created(self._place())
            if self._created is not None:
                self._gauge.raise_to(self._created - policy.slack_us)
        return self._gauge.value(self._row)

    def _scan(self) -> Minima:
        """Event times of the whole file, for the exact watermark."""
        quiet = msgspec.structs.replace(self._reading, policy=BoundedDisorder())
        twin = TextPartition(self.name, msgspec.structs.replace(self.identity), quiet, self._place)
        twin._muted = True
        starts, minima = [], []
        while (batch := twin.read(FILE_SCAN_ROWS)) is not None:
            if batch.rows:
                starts.append(batch.rows[0])
                minima.append(min(batch.timestamps))
        return Minima(starts, minima)

    def close(self) -> None:
        """Release the file."""
        if self._buffer is not None:
            self._stream.close()
            self._buffer = None

    def is_open(self) -> bool:
        """True while the file is held open, so that it stays readable even when it is deleted."""
        return self._buffer is not None


def creation_us(place: Path, policy: FileCreation, first_us: int) -> int:
    """When a file was made: as the policy says, as the file system says, or its first row's event time."""
    if policy.created is not None:
        return policy.created(place)
    birth = getattr(place.stat(), "st_birthtime", None)
    return first_us if birth is None else min(first_us, int(birth * 1_000_000))
