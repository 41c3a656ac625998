"""The epochs of a cluster: many workers begin one, and all have to end it (docs/adr/0035-snapshots-on-a-cluster.md).

Lives here: whom an epoch waits for.  Never here: who owns what (`generations`), or what workers do in an epoch
(`shared_epochs`).  All owners stay the same as long as an object of this module counts; with others, all goes back, and
another object follows.  Invariants:

* no interval aligns before every worker has named the barriers that it sends;
* an epoch is declared when every interval of the map has written its part, under the sequencer that the map has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from millwheel import limits
from millwheel.host.epoch_keeper import Declaring
from millwheel.host.messages import BarriersNamed, EpochOpened, ImageWritten, Message
from millwheel.host.procedures import Steps
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import PositionWrite


class LedEpochs(Declaring):
    """The epochs of one leader with one set of owners.

    `workers` are the names of all that own something, and `owners` all intervals of the map.
    """

    def __init__(
        self,
        *,
        workers: Iterable[str],
        owners: Mapping[IntervalId, Sequencer],
        term: int,
        every_us: int,
        begin: Callable[[Steps], None],
        tell: Callable[[Message], None],
        values: Callable[[], Mapping[str, int]],
        durable: bool = True,
    ) -> None:
        super().__init__(every_us=every_us, begin=begin, tell=tell, values=values, term=term, durable=durable)
        self._workers = frozenset(workers)
        self._owners = dict(owners)
        self._parts: dict[str, EpochOpened] = {}
        """By worker, of the epoch that runs."""
        self._reminded_at = 0

    def end(self) -> None:
        """The owners have changed, or another controller leads: nothing more is begun or declared."""
        self._over, self._refusal = True, None

    @property
    def resting(self) -> bool:
        """Whether no epoch runs."""
        return self._epoch == 0

    @property
    def declared(self) -> int:
        """The last declared epoch."""
        return self._declared or 0

    def _start(self, epoch: int) -> None:
        self._parts.clear()
        self._reminded_at = self.now
        super()._start(epoch)

    def _remind(self) -> None:
        """Say again what may have been lost, or came before its hearer had taken all that is its own."""
        if self._epoch and self.now - self._reminded_at >= limits.CLUSTER_LOOK_US:
            self._reminded_at = self.now
            for message in self.restate():
                self._tell(message)

    def restate(self) -> list[Message]:
        """See `Declaring`."""
        said = super().restate()
        if self._refusal is not None:
            return said
        return said + ([BarriersNamed(self._epoch, self._opened.barriers)] if self._opened and self._epoch else [])

    def begun(self, worker: str, message: EpochOpened) -> None:
        """A worker has begun the epoch.  When all have, intervals hear whose barriers they wait for."""
        if message.epoch != self._epoch or self._opened is not None or worker not in self._workers:
            return
        self._parts[worker] = message
        if self._parts.keys() != self._workers:
            return
        owners: dict[IntervalId, Sequencer] = {}
        positions: list[PositionWrite] = []
        barriers: dict[IntervalId, tuple[IntervalId, ...]] = {}
        for part in self._parts.values():
            owners |= part.owners
            positions += part.positions
            barriers |= part.barriers
        if owners == self._owners:  # else the map has changed, and all is going back
            self._tell(BarriersNamed(message.epoch, barriers))
            self.opened(EpochOpened(message.epoch, owners, tuple(positions), barriers))

    def written(self, message: ImageWritten) -> None:
        """See `Declaring`; what an earlier owner says does not count."""
        if self._owners.get(message.interval) == message.sequencer:
            super().written(message)
