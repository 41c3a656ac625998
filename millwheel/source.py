"""What an injector needs from a source of outside data (§5.2).  Protocols and plain values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, runtime_checkable

import msgspec
from typing_extensions import TypeVar

from millwheel.ids import IntervalId, ProducerId
from millwheel.limits import OUTSIDE_SLACK_US
from millwheel.rejected import Kinds
from millwheel.search import BlockingCall, Search, Unknown, sign

T_co = TypeVar("T_co", covariant=True, default=Any)

T = TypeVar("T", default=Any)

RecordId: TypeAlias = Callable[[T], str | bytes]
"""The id that an outside client gave to a row, of the row's value."""


class Batch(msgspec.Struct, Generic[T_co], frozen=True, gc=False):
    """Rows read from one source partition.  Columns; `rows` are raw row numbers within the partition, ascending.

    `next_position` is the raw row number to continue from once all of these are acked, `state` what to store with it.
    """

    rows: list[int]
    values: Sequence[T_co]
    timestamps: list[int]
    next_position: int
    state: bytes
    rejected: int = 0
    outside: Sequence[str | bytes] = ()
    """Ids that outside clients chose, one a row, of a source that has them beside the values; else `record_id` gives them."""


class SourcePartition(Protocol[T_co]):
    """One readable unit of a source (a file).

    It is read on the thread of the hooks: while `read` waits, nothing else runs.  What comes from a slow server is fetched by
    a thread of the source's own, and `read` gives what is there.
    """

    name: str
    """Stable identity across restarts, renames and rotation."""

    def fingerprint(self) -> bytes:
        """Opaque state of a partition that has not been read yet."""
        ...

    def resume(self, position: int, state: bytes) -> None:
        """Continue at raw row `position`; raises `SourceError` when the partition was rewritten."""
        ...

    def read(self, limit: int) -> Batch[T_co] | None:
        """At most `limit` rows, or None when there is nothing now; it is asked again soon."""
        ...

    def finished(self) -> bool:
        """True when no row will ever come any more."""
        ...

    def watermark(self) -> int:
        """No row that `read` returns from now on is expected to have a smaller event time, us."""
        ...

    def close(self) -> None:
        """Release files."""
        ...


class Ahead(msgspec.Struct, frozen=True, gc=False):
    """The row that stands next in a paced partition, and was not given: its event time, and the newest one up to it in the
    partition, us; `late` when the partition's watermark has passed it."""

    time: int
    due: int
    late: bool


class PacedPartition(SourcePartition[T_co], Protocol[T_co]):
    """A partition of a source with a `pace`."""

    def read_due(self, limit: int, upto: int) -> tuple[Batch[T_co] | None, Ahead | None]:
        """As `read`, but a row whose event time is above `upto`, us, is not given, nor what stands behind it; and a late row
        is announced once, as what stands next, before it is given.  Without what stands next, there may be more."""
        ...


@runtime_checkable
class ServedPartition(SourcePartition[T_co], Protocol[T_co]):
    """A partition of a `served` source: outside clients bring its rows, and keep them until they hear that they are durable.

    A row that was read and is not durable when a process ends does not come again by itself.  So no two processes may give
    two rows one number: each process has a partition of its own, and gives those of earlier ones as finished.
    """

    async def serve(self) -> None:
        """Let clients in, until it is cancelled.  An error ends the run."""
        ...

    def kept(self, position: int) -> None:
        """All rows below `position` are durable at every receiver, or were rejected."""
        ...


@runtime_checkable
class AnnouncingPartition(SourcePartition[T_co], Protocol[T_co]):
    """A partition of a source that `announces`: it says when rows have come, so they need not wait for the next look.

    It is looked at now and then in any case (`limits.ANNOUNCED_POLL_US`).
    """

    def announce_to(self, wake: Callable[[], None]) -> None:
        """From now on call `wake` when there are rows, when a read has left some, and at the end of the partition.

        It returns at once.  Any thread may call it, as often as it likes, also in vain.
        """
        ...


class SourcePosition(msgspec.Struct, frozen=True):
    """Durable progress of one source partition.  `position` counts raw rows that are durably acked."""

    partition: str
    interval: IntervalId
    producer: ProducerId
    position: int
    finished: bool
    state: bytes
    """Opaque to all but the injector: fingerprint, byte offset and so on (JSON)."""
    rejected: int = 0
    """Of the rows below `position`, those that could not be encoded or keyed."""


class Source(Protocol[T_co]):
    """An injector's outside: discovers partitions (§5.2), whose rows have values of type `T_co`.

    Subclass it: what has a value or a body here is optional.
    """

    name: str

    kind: str = ""
    """What it reads, for example files.  Names of partitions and positions are those of a kind: another one under the same
    name is refused.  Empty: anything."""

    ordered: bool = False
    """Partitions follow each other in event time, in the order in which `discover` gives them: they are read one after
    the other, and those to come do not hold the watermark."""

    idle_after_us: int | None = None
    """Silence of a partition, us of wall time, after which the watermark may follow the wall clock; None: never."""

    grows: bool = True
    """Rows may come to a partition that has given all it had.  Where they cannot, `idle_after_us` has no effect."""

    disorder_us: int = 0
    """How far behind the wall clock it stays then, us."""

    record_id: RecordId | None = None
    """Gives the id of a row that an outside client chose: of the rows with one id, in whichever partitions they come, one
    is delivered within the slack."""

    id_slack: int = OUTSIDE_SLACK_US
    """How long such an id is remembered, us of wall time."""

    served: bool = False
    """Its partitions may be `ServedPartition`s."""

    announces: bool = False
    """Its partitions may be `AnnouncingPartition`s.  With a `pace` they are asked when rows are due instead."""

    pace: float | None = None
    """A replay: so many us of event time are played in each us of wall time; its partitions are `PacedPartition`s.  None:
    everything is read as fast as it is taken."""

    def discover(self, known: Iterable[str]) -> Sequence[SourcePartition[T_co]]:
        """Partitions that are there now, except those whose names are in `known`.  It runs beside the event loop."""
        ...

    def search(self, known: set[str]) -> Search:
        """One look for partitions, as steps: `discover`, less those that are finished.

        `known` has the names that need not be found again: partitions that are open, and what the search adds; the set
        is the same for every search of a run.  A source with very many partitions has a search of its own, which asks
        the store instead of keeping names.
        """
        found: list[SourcePartition] = yield BlockingCall(lambda: self.discover(known))
        signs = {sign("name", partition.name): partition for partition in found}
        unknown = (yield Unknown([*signs])) if signs else set()
        known.update(partition.name for known_by, partition in signs.items() if known_by not in unknown)
        return [partition for partition in found if partition.name not in known]

    def signs(self, position: SourcePosition) -> list[bytes]:
        """By which a partition that is finished at `position` is known again: its name, unless a source says more."""
        return [sign("name", position.partition)]

    def release(self, name: str) -> None:
        """A partition that was found is finished, and the store says so: nothing need be remembered of it."""
        return

    def complete(self) -> bool:
        """True when the last look has given every partition that will ever be there.

        It is asked after the look, sometimes long after: what has appeared since was not given, so it must not count.
        """
        ...

    def pending_watermark(self) -> int:
        """Bound on the event time of rows in partitions that the last look, or one before it, has not given, us."""
        ...

    def recall(self, positions: Iterable[SourcePosition]) -> None:
        """Before the first search: the partitions that earlier runs have begun and not finished, so that they keep names."""
        return

    def title(self, position: SourcePosition) -> str:
        """What a partition is to people, for example its file's path."""
        return position.partition

    def reject(self, partition: str, row: int, reason: str, value: Any) -> None:
        """A row that has no key or cannot be encoded; without a place of its own the first of each kind is logged."""
        kinds: Kinds = vars(self).setdefault("_rejected_kinds", Kinds(self.name))
        kinds.add(partition, row, reason, value)

    def rejections(self) -> Mapping[str, int]:
        """Rejected rows since the process began, by kind."""
        kinds = vars(self).get("_rejected_kinds")
        return kinds.counts if isinstance(kinds, Kinds) else {}


def announces(source: Source) -> bool:
    """Whether its partitions are asked to say when they have rows: not in a replay, which knows when they are due."""
    return source.announces and source.pace is None
