"""The alphabet of a host: events that enter it and effects that leave it.  Plain values; nothing else lives here.

They are final.  So `type(event) is Kind` says as much as a pattern, to the reader and to the type checker, and in Python
it costs a tenth: `isinstance` asks the metaclass of each kind that it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import msgspec

from millwheel.core.interval import events as ev
from millwheel.errors import RowRefused
from millwheel.host.messages import Message
from millwheel.host.requests import StoreCall
from millwheel.ids import IntervalId, Sequencer, SubscriptionId
from millwheel.source import SourcePosition
from millwheel.work import InvocationOutcome, Work

# --- what a host waits for ----------------------------------------------------------------------------------------


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Let this much time pass."""

    delay_us: int


class Prepare(msgspec.Struct, frozen=True, gc=False):
    """Make user code ready to run; `subscriptions` are the store's numbers for their names.

    `places` has by computation the names under which the store keeps cells that were renamed.
    """

    subscriptions: Mapping[str, SubscriptionId]
    places: Mapping[str, Mapping[str, str]] = {}


class Discover(msgspec.Struct, frozen=True, gc=False):
    """Ask a source for partitions that it has not named yet.  Answered with the first step of its search, or a `Discovery`.

    `earlier` has the partitions of earlier runs when the source is asked for the first time, and is None after that.
    """

    source: str
    earlier: tuple[SourcePosition, ...] | None


class Seek(msgspec.Struct, frozen=True, gc=False):
    """The result of a step of a source's search.  Answered with the next step, or with the `Discovery`."""

    source: str
    answer: Any


class Discovery(msgspec.Struct, frozen=True, gc=False):
    """What a search of a source has found."""

    found: tuple[tuple[str, bytes], ...]
    """Names and fingerprints."""
    complete: bool
    """There will never be another one."""
    pending: int
    """Bound on the event time of partitions that are not there yet, us."""
    asked_at: int
    """Wall time before the source was asked, us."""


class Resume(msgspec.Struct, frozen=True, gc=False):
    """Go on with a partition where it stood; answered with its watermark, us."""

    source: str
    partition: str
    position: SourcePosition


Wish = StoreCall | Pause | Prepare | Discover | Seek | Resume

# --- events -------------------------------------------------------------------------------------------------------


@final
class Started(msgspec.Struct, frozen=True, gc=False):
    """The process begins."""


@final
class Received(msgspec.Struct, frozen=True, gc=False):
    """A message came from `peer`."""

    peer: str
    message: Message


@final
class ChannelOpened(msgspec.Struct, frozen=True, gc=False):
    """The channels from and to `peer` are open again; what was on its way is gone."""

    peer: str


@final
class Answered(msgspec.Struct, frozen=True, gc=False):
    """The answer to `Ask`."""

    token: int
    answer: Any


@final
class Declined(msgspec.Struct, frozen=True, gc=False):
    """The store refused sink rows of an `Ask`."""

    token: int
    refusal: RowRefused


@final
class Told(msgspec.Struct, frozen=True, gc=False):
    """An event for the core of `interval`, as long as it runs under `sequencer`."""

    interval: IntervalId
    sequencer: Sequencer
    event: ev.Event


@final
class Due(msgspec.Struct, frozen=True, gc=False):
    """An invocation whose turn has come."""

    interval: IntervalId
    sequencer: Sequencer
    work: Work


@final
class Returned(msgspec.Struct, frozen=True, gc=False):
    """User code has returned."""

    interval: IntervalId
    sequencer: Sequencer
    outcome: InvocationOutcome
    elapsed_us: int


@final
class RowsArrived(msgspec.Struct, frozen=True, gc=False):
    """A read of a source partition that began at wall time `asked_at`, us."""

    interval: IntervalId
    sequencer: Sequencer
    rows: ev.RowsRead
    asked_at: int


@final
class Announced(msgspec.Struct, frozen=True, gc=False):
    """A source partition says that it has rows, or has come to its end."""

    interval: IntervalId


@final
class Tick(msgspec.Struct, frozen=True, gc=False):
    """The time of a `WakeAt` may have come."""


@final
class TurnEnded(msgspec.Struct, frozen=True, gc=False):
    """The shell turns to I/O now, so what is ready leaves together."""


@final
class Rested(msgspec.Struct, frozen=True, gc=False):
    """Nothing is queued in the shell, and no message is on its way within this process."""


HostEvent = (
    Started | Received | ChannelOpened | Answered | Declined | Told | Due | Returned | RowsArrived | Announced | Tick
    | TurnEnded | Rested
)  # fmt: skip

# --- effects ------------------------------------------------------------------------------------------------------


@final
class Ask(msgspec.Struct, frozen=True, gc=False):
    """Answer with `Answered` or `Declined`."""

    token: int
    wish: Wish


@final
class Post(msgspec.Struct, frozen=True, gc=False):
    """Give this back to the host, after what is queued already."""

    event: HostEvent


@final
class Tell(msgspec.Struct, frozen=True, gc=False):
    """Send a message to the host `peer`, which may be this one."""

    peer: str
    message: Message


@final
class Reach(msgspec.Struct, frozen=True, gc=False):
    """These are the hosts of other processes to which messages may go, and their addresses, host:port.

    The channel to a host that is not named any more is given up.
    """

    addresses: Mapping[str, str]


@final
class RunHooks(msgspec.Struct, frozen=True, gc=False):
    """Run user code of a computation now, and answer with `Returned`."""

    computation: str
    interval: IntervalId
    sequencer: Sequencer
    work: Work


@final
class ReadRows(msgspec.Struct, frozen=True, gc=False):
    """Read at most `limit` rows of the partition that was resumed for `interval`, and answer with `RowsArrived`.

    `upto` is for a paced partition: read no row that is newer, us.
    """

    interval: IntervalId
    sequencer: Sequencer
    limit: int
    upto: int | None = None


@final
class Answer(msgspec.Struct, frozen=True, gc=False):
    """All rows below `position` of the partition that was resumed for `interval` are durable: tell whoever brought them."""

    interval: IntervalId
    position: int


@final
class Release(msgspec.Struct, frozen=True, gc=False):
    """Forget the partition that was resumed for `interval`: its end is durable, or another worker has the source."""

    interval: IntervalId
    finished: bool = True
    """False: it goes on elsewhere, and a later search may find it again."""


@final
class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Send a `Tick` at wall time `at`, us, or soon after."""

    at: int


@final
class Notice(msgspec.Struct, frozen=True, gc=False):
    """Something that an operator should know, or with `info` one that looks closely; `facts` name what it is about."""

    text: str
    info: bool = False
    facts: Mapping[str, str | int] = {}


@final
class Declare(msgspec.Struct, frozen=True, gc=False):
    """The database has refused sink rows of a computation, with these answers; their keys go to quarantine."""

    computation: str
    answers: tuple[str, ...]


@final
class Ended(msgspec.Struct, frozen=True, gc=False):
    """The run is over: all input is consumed, committed and folded, or it stops before that and says why."""


@final
class Failed(msgspec.Struct, frozen=True, gc=False):
    """The run cannot go on."""

    error: Exception


HostEffect = (
    Ask | Post | Tell | Reach | RunHooks | ReadRows | Answer | Release | WakeAt | Notice | Declare | Ended | Failed
)
