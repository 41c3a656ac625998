"""What the partitions of a worker need of it.

Lives here: the protocol.  Never here: what a worker does with it (`worker`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from millwheel.core.interval import events as ev
from millwheel.host.actors import Actor, Actors
from millwheel.host.alphabet import ReadRows, Wish
from millwheel.host.messages import Message
from millwheel.host.procedures import Steps
from millwheel.host.routes import Routes
from millwheel.ids import IntervalId, Sequencer


class PartOwner(Protocol):
    """The worker, as far as its partitions need it."""

    actors: Actors
    routes: Routes
    now: int

    @property
    def values(self) -> dict[str, int]:
        """Published watermarks, us."""
        ...

    def begin(self, steps: Steps) -> None:
        """Start a procedure."""
        ...

    def sequencers(
        self, source: str, intervals: Sequence[IntervalId]
    ) -> Generator[Wish, Any, dict[IntervalId, Sequencer] | None]:
        """New sequencers for partitions of a source; None when another worker has the source."""
        ...

    def pressed(self) -> bool:
        """Whether no partition is read now, because an epoch must end first."""
        ...

    def label(self) -> int | None:
        """The last barrier that has passed here; None without snapshots."""
        ...

    def tell(self, actor: Actor, event: ev.Event) -> None:
        """Give a core an event, after what is queued."""
        ...

    def perform(self, actor: Actor, effects: list[ev.Effect]) -> None:
        """Perform effects of a core."""
        ...

    def inform(self, message: Message) -> None:
        """Send a message to the controller."""
        ...

    def announce(self, message: Message) -> None:
        """Send a message to every worker."""
        ...

    def read(self, effect: ReadRows) -> None:
        """Have rows read."""
        ...

    def release(self, actor: Actor, finished: bool = True) -> None:
        """Forget a partition that is finished, or that another worker goes on with."""
        ...

    def source_lost(self, name: str) -> None:
        """Another worker has a source, as the store says."""
        ...

    def note(self, text: str) -> None:
        """Tell the operator."""
        ...
