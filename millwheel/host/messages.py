"""What hosts tell each other (docs/protocol.md).  Frozen values; nothing else lives here.

A channel goes from one host to another.  It keeps the order of its messages, as docs/protocol.md says.  A channel may be
cut, and then everything that was on its way is lost.  When it is open again, both ends hear of it (`ChannelOpened`) and say
again what the other must know.  Every message may come twice.
"""

from __future__ import annotations

from typing import final

import msgspec

from millwheel.bundles import Bundle
from millwheel.cluster import RunEnding
from millwheel.core.ids.dedup import Channel
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import PositionWrite


@final
class Hello(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """`interval` is served under `sequencer` from now on.  Send it what it has not acked, in order.

    A sender that has not heard this sends nothing, because a new bundle could overtake one that was lost.  `round` counts how
    often this owner has said hello to the same host.  After a cut it says hello again.  It is served for keys from `low` to
    before `high`: who still knows it with other keys, or knows it already with other keys, sends it nothing.
    """

    interval: IntervalId
    sequencer: Sequencer
    round: int
    low: str = ""
    high: str | None = None


@final
class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A bundle for an interval that is served under `sequencer`.

    If it is served under another one by then, the bundle is dropped.  It is sent again after the next `Hello`.
    """

    bundle: Bundle
    sequencer: Sequencer
    metered: bool
    """It comes from a source, and counts against the receiver's `Credit`."""


@final
class Receipt(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """The bundle `number` of the interval `sender` is durable at `interval`; under snapshots it has run there, in `epoch`."""

    interval: IntervalId
    sender: IntervalId
    number: int
    epoch: int = 0


@final
class Credit(msgspec.Struct, frozen=True, gc=False):
    """Sources may send so many bytes to `interval` in all, counted since its `Hello` of this round."""

    interval: IntervalId
    sequencer: Sequencer
    round: int
    upto_bytes: int


@final
class Expected(msgspec.Struct, frozen=True, gc=False):
    """Something may still come on these channels, although their producers are older than their receivers."""

    channels: tuple[Channel, ...]


@final
class WorkerJoined(msgspec.Struct, frozen=True, gc=False):
    """A worker has taken its intervals over.

    `senders` are the names of what bounds the input of each computation, `loops` the computations of each loop.
    `shares` are, by "source:name", the millionths of partitions that the watermarks of some sources wait for.
    """

    senders: dict[str, tuple[str, ...]]
    loops: dict[str, tuple[str, ...]] = {}
    shares: dict[str, int] = {}


@final
class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A worker has these intervals, as (computation or "source:name", interval, sequencer).

    Each of them holds the watermark until it has reported, which it does under the sequencer.  None as sequencer means that
    nobody owns the interval.
    """

    intervals: tuple[tuple[str, IntervalId, Sequencer | None], ...]


@final
class Disowned(msgspec.Struct, frozen=True, gc=False):
    """A watermark was refused, because not all of these (interval, sequencer) pairs are current.

    A worker with one of these intervals knows whether it is just getting another sequencer.  Otherwise it asks the store
    whether it was superseded.
    """

    owners: tuple[tuple[IntervalId, Sequencer], ...]


@final
class Unsettled(msgspec.Struct, frozen=True, gc=False):
    """An interval of `owner` has productions for `receivers`, to which this version of it does not send any more.

    Until it is `IntervalSettled`, their watermark waits for it.
    """

    owner: str
    interval: IntervalId
    receivers: tuple[str, ...]


@final
class IntervalSettled(msgspec.Struct, frozen=True, gc=False):
    """The interval has nothing left for receivers that are not its own."""

    interval: IntervalId


@final
class Excused(msgspec.Struct, frozen=True, gc=False):
    """This interval of `owner` need not report yet, because other intervals of `owner` hold older records."""

    owner: str
    interval: IntervalId


@final
class Concluded(msgspec.Struct, frozen=True, gc=False):
    """A partition of the source `owner` is finished.  It does not hold the watermark any more and is forgotten."""

    owner: str
    interval: IntervalId


@final
class Open(msgspec.Struct, frozen=True, gc=False):
    """All partitions of the source `owner` that are not finished; others that were claimed are `Concluded`.

    Each of them holds the watermark until it has reported.
    """

    owner: str
    intervals: tuple[IntervalId, ...]


@final
class WatermarkReport(msgspec.Struct, frozen=True, gc=False):
    """An interval's own low watermark, us (paper 4.5), under the sequencer of its owner."""

    owner: str
    interval: IntervalId
    value: int
    sequencer: Sequencer
    label: int = 0
    """The last barrier that the reporter had passed."""


@final
class RoundAsked(msgspec.Struct, frozen=True, gc=False):
    """Each interval of the loop answers with the oldest work that it has held since its previous answer.

    Rounds of a loop have rising numbers.  `bound` is what the loop's inputs from outside have promised, us.
    """

    round: int
    loop: str
    bound: int


@final
class RoundAnswered(msgspec.Struct, frozen=True, gc=False):
    """The oldest work, us, that an interval has held between its answers to the round before and to this one."""

    interval: IntervalId
    sequencer: Sequencer
    round: int
    minimum: int
    label: int = 0
    """The last barrier that it has passed."""


@final
class SourceBound(msgspec.Struct, frozen=True, gc=False):
    """A source's bound on the event time of what it has not discovered yet, us."""

    source: str
    value: int


@final
class WatermarksRaised(msgspec.Struct, frozen=True, gc=False):
    """Persisted watermarks by computation or "source:name", and the input watermarks that they make, us."""

    values: dict[str, int]
    inputs: dict[str, int]
    label: int = 0
    """The highest label of the reports that they rest on."""


@final
class MapChanged(msgspec.Struct, frozen=True, gc=False):
    """The map has this version now: read it.  Whoever misses this reads it a little later."""

    version: int


@final
class Led(msgspec.Struct, frozen=True, gc=False):
    """The sender leads, under this epoch: say everything again that a controller must know."""

    epoch: int


@final
class HandOver(msgspec.Struct, frozen=True, gc=False):
    """The leader is going to place these elsewhere: finish what runs, fold it, and let go of them.

    `acked` says to wait until receivers have acked what these have sent: an interval that is split has two successors, and
    only one of them sends again what its last owner has sent, while the other goes on.
    """

    intervals: tuple[IntervalId, ...]
    sources: tuple[str, ...]
    acked: bool


@final
class HandedOver(msgspec.Struct, frozen=True, gc=False):
    """Nothing of these runs here any more, and what ran is folded."""

    intervals: tuple[IntervalId, ...]
    sources: tuple[str, ...]


@final
class IntervalLoad(msgspec.Struct, frozen=True, gc=False):
    """How busy an interval is: thousandths of a core that its hooks took.

    About half of the keys that come are below `median`.  It is "" when nobody knows.
    """

    interval: IntervalId
    permille: int
    median: str


@final
class LoadReport(msgspec.Struct, frozen=True, gc=False):
    """The loads of a worker's intervals since its last report."""

    loads: tuple[IntervalLoad, ...]


@final
class Drained(msgspec.Struct, frozen=True, gc=False):
    """All that this version of the map gives to the worker is at the end of time, committed and folded.

    `quarantined`: how many keys of its intervals are in quarantine; those without any are left out.
    """

    incarnation: int
    version: int
    quarantined: dict[IntervalId, int] = {}


@final
class InQuarantine(msgspec.Struct, frozen=True, gc=False):
    """How many keys of the worker's intervals are in quarantine now; those without any are left out."""

    incarnation: int
    keys: dict[IntervalId, int]


@final
class RunEnded(msgspec.Struct, frozen=True, gc=False):
    """Every worker is drained, or too much has failed: leave, and end.  `ending` is the same for all."""

    ending: RunEnding = RunEnding()


@final
class EpochBased(msgspec.Struct, frozen=True, gc=False):
    """The worker has brought the store back to this epoch, the last one that was declared, and begins there."""

    declared: int


@final
class EpochStarted(msgspec.Struct, frozen=True, gc=False):
    """An epoch begins: partitions note their positions and send barriers."""

    epoch: int


@final
class EpochOpened(msgspec.Struct, frozen=True, gc=False):
    """The worker has begun an epoch: its intervals, whose parts belong to it, and the positions that its partitions noted.

    In a cluster `barriers` has, by sender, all that get a barrier from this worker's partitions and intervals.
    """

    epoch: int
    owners: dict[IntervalId, Sequencer]
    positions: tuple[PositionWrite, ...]
    barriers: dict[IntervalId, tuple[IntervalId, ...]] = {}


@final
class BarriersNamed(msgspec.Struct, frozen=True, gc=False):
    """In a cluster: all workers have begun an epoch, and these barriers are on their way, receivers by sender."""

    epoch: int
    barriers: dict[IntervalId, tuple[IntervalId, ...]]


@final
class ImageWritten(msgspec.Struct, frozen=True, gc=False):
    """The interval's part of an epoch is in the log.  `sinks` is the seq of the row with its sink rows, or 0.

    In a cluster `reached` has the watermarks that were told in front of its barrier, us, maybe by an earlier leader.
    """

    epoch: int
    interval: IntervalId
    sequencer: Sequencer
    sinks: int
    reached: dict[str, int] = {}


@final
class EpochWanted(msgspec.Struct, frozen=True, gc=False):
    """The worker waits for the epoch after this one."""

    after: int


@final
class EpochDeclared(msgspec.Struct, frozen=True, gc=False):
    """The epoch is complete, and visible."""

    epoch: int


@final
class EpochRefused(msgspec.Struct, frozen=True, gc=False):
    """The database refuses sink rows of the row `seq` of an interval: (place, answer).  The epoch is not declared."""

    epoch: int
    interval: IntervalId
    seq: Seq
    rows: tuple[tuple[int, str], ...]


ForController = (
    WorkerJoined | Claimed | Unsettled | IntervalSettled | Excused | Concluded | Open | WatermarkReport | SourceBound
    | HandedOver | LoadReport | Drained | InQuarantine | RoundAnswered | EpochBased | EpochOpened | ImageWritten
    | EpochWanted
)  # fmt: skip
"""What workers tell whoever decides, and nobody else."""

Message = (
    ForController | Hello | Delivery | Receipt | Credit | Expected | WatermarksRaised | Disowned | MapChanged | Led
    | HandOver | RunEnded | RoundAsked | EpochStarted | BarriersNamed | EpochDeclared | EpochRefused
)  # fmt: skip
