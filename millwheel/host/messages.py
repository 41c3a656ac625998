"""What hosts tell each other (docs/protocol.md).  Frozen values; nothing else lives here.

A channel goes from one host to another.  It keeps the order of its messages and may break: then everything that was on
its way is gone.  When it is open again both ends hear of it (`ChannelOpened`) and say again what the other must know.
No message is ever needed twice, and each may come twice.
"""

from __future__ import annotations

import msgspec

from millwheel.bundles import Bundle
from millwheel.core.ids.dedup import Channel


class Hello(msgspec.Struct, frozen=True, gc=False):
    """`interval` is served under `sequencer` from now on.  Send it what it has not acked, in order.

    A sender that has not heard it sends nothing: bundles for an earlier owner would overtake what that one has lost.
    `round` counts the times that this owner has said it to the same host: after a cut it says it again.
    """

    interval: int
    sequencer: int
    round: int


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A bundle for an interval, as long as that is served under `sequencer`; else it is dropped, and sent again after
    the next `Hello`."""

    bundle: Bundle
    sequencer: int
    metered: bool
    """It comes from a source, and counts against the receiver's `Credit`."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The bundle `number` of the interval `sender` is durable at `interval`."""

    interval: int
    sender: int
    number: int


class Credit(msgspec.Struct, frozen=True, gc=False):
    """Of what sources send to `interval` since its `Hello` of this round, it takes the first `upto_bytes`."""

    interval: int
    sequencer: int
    round: int
    upto_bytes: int


class Expected(msgspec.Struct, frozen=True, gc=False):
    """On these channels something may still come, though their producers are older than their receivers."""

    channels: tuple[Channel, ...]


class WorkerJoined(msgspec.Struct, frozen=True, gc=False):
    """A worker has taken its intervals over; `senders` are the computations and sources that send to each computation."""

    senders: dict[str, tuple[str, ...]]


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A worker has these intervals, as (computation or "source:name", interval, sequencer): until each has reported, it
    holds.  It reports under the sequencer; None: nobody owns the interval."""

    intervals: tuple[tuple[str, int, int | None], ...]


class Disowned(msgspec.Struct, frozen=True, gc=False):
    """A watermark was refused: not all of these (interval, sequencer) are owners any more.  A worker that takes itself for
    one of them knows whether it is just getting another sequencer, or was superseded."""

    owners: tuple[tuple[int, int], ...]


class Unsettled(msgspec.Struct, frozen=True, gc=False):
    """An interval of `owner` has productions for `receivers` that this version of it does not send to any more: until it
    is `IntervalSettled` they wait for it."""

    owner: str
    interval: int
    receivers: tuple[str, ...]


class IntervalSettled(msgspec.Struct, frozen=True, gc=False):
    """The interval has nothing left for receivers that are not its own."""

    interval: int


class Excused(msgspec.Struct, frozen=True, gc=False):
    """What this interval of `owner` holds is younger than what others of it hold: it need not report yet."""

    owner: str
    interval: int


class Concluded(msgspec.Struct, frozen=True, gc=False):
    """A partition of the source `owner` is finished: it holds nothing any more, and is forgotten."""

    owner: str
    interval: int


class Open(msgspec.Struct, frozen=True, gc=False):
    """All partitions of the source `owner` that are not finished; others that were claimed are `Concluded`."""

    owner: str
    intervals: tuple[int, ...]


class WatermarkReport(msgspec.Struct, frozen=True, gc=False):
    """An interval's own low watermark, us (paper 4.5)."""

    owner: str
    interval: int
    value: int


class SourceBound(msgspec.Struct, frozen=True, gc=False):
    """A source's bound on the event time of what it has not discovered yet, us."""

    source: str
    value: int


class WatermarksRaised(msgspec.Struct, frozen=True, gc=False):
    """Persisted watermarks by computation or "source:name", and the input watermarks that they make, us."""

    values: dict[str, int]
    inputs: dict[str, int]


Message = (
    Hello | Delivery | Receipt | Credit | Expected | WorkerJoined | Claimed | Unsettled | IntervalSettled | Excused
    | Concluded | Open | WatermarkReport | SourceBound | WatermarksRaised | Disowned
)  # fmt: skip
