"""When an epoch begins, and when it is complete (docs/adr/0032-snapshots-at-barriers.md).

Lives here: one epoch at a time, from its begin to its declaration, and the watermarks that are stored with it.  Never
here: what workers do in it (`barriers`).  Invariants:

* an epoch is declared when the worker has opened it and every interval has written its part, and only then;
* the watermarks that are stored with an epoch rest on no report that was made after its barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millwheel import limits
from millwheel.errors import InvariantError, RowRefused
from millwheel.host.alphabet import Pause
from millwheel.host.messages import (
    Disowned,
    EpochDeclared,
    EpochOpened,
    EpochRefused,
    EpochStarted,
    EpochWanted,
    ImageWritten,
    Message,
)
from millwheel.host.procedures import Steps
from millwheel.host.requests import DeclareEpoch
from millwheel.ids import IntervalId, Seq
from millwheel.model import MIN_TIME
from millwheel.ports import Declaration


class Declaring:
    """The epochs of a run, one every `every_us`.

    `begin` starts a procedure, `tell` sends a message to all workers, and `values` are the watermarks that were told.
    Without `durable`, which is for comparisons, the store never hears of an epoch.
    """

    def __init__(
        self,
        *,
        every_us: int,
        begin: Callable[[Steps], None],
        tell: Callable[[Message], None],
        values: Callable[[], Mapping[str, int]],
        term: int = 0,
        durable: bool = True,
    ) -> None:
        self._every_us = every_us
        self._begin = begin
        self._tell = tell
        self._values = values
        self._term = term
        """Of the leader, in a cluster."""
        self._durable = durable
        self.now = 0
        self._declared: int | None = None
        """None: the store was not brought back to the last epoch yet."""
        self._epoch = 0
        """The one that runs, or 0."""
        self._opened: EpochOpened | None = None
        self._written: dict[IntervalId, ImageWritten] = {}
        self._declaring = False
        self._wanted = False
        self._over = False
        """Nothing more is declared: rows were refused, or all has gone back."""
        self._refusal: EpochRefused | None = None
        """What ended it.  Its interval must hear of it, or nobody goes back."""
        self.label = 0
        """The highest label of a report that was heard."""
        self._stored: dict[str, int] | None = None
        """The watermarks before the first report under the label of the epoch that runs."""

    def based(self, declared: int) -> None:
        """The store is at the epoch `declared`: begin."""
        if self._declared is None:
            self._declared = declared
            self.label = max(self.label, declared)
            self._begin(self._run())

    def _run(self) -> Steps:
        since = self.now
        while True:
            yield Pause(min(self._every_us, limits.EPOCH_LOOK_US))
            if self._over and self._refusal is None:
                return
            if self._over:
                self._remind()
            elif self._epoch == 0 and (self._wanted or self.now - since >= self._every_us):
                since = self.now
                self._start((self._declared or 0) + 1)
            else:
                self._remind()

    def _start(self, epoch: int) -> None:
        self._wanted, self._epoch, self._opened = False, epoch, None
        if self.label < epoch:  # else an earlier leader has begun it, and a report from behind its barrier was heard
            self._stored = None
        self._written.clear()
        self._tell(EpochStarted(epoch))

    def _remind(self) -> None:
        """Nothing is to be begun."""

    def restate(self) -> list[Message]:
        """What a worker must hear again after a cut."""
        if self._refusal is not None:
            return [self._refusal]
        said: list[Message] = [EpochDeclared(self._declared)] if self._declared else []
        return said + ([EpochStarted(self._epoch)] if self._epoch else [])

    def reported(self, label: int) -> bool:
        """A report under `label` is heard.  True when it is the first one after a barrier: what was told before it is stored
        with the epoch."""
        if label <= self.label:
            return False
        self.label, self._stored = label, dict(self._values())
        return True

    def opened(self, message: EpochOpened) -> None:
        """A worker has begun the epoch."""
        if message.epoch == self._epoch and self._opened is None:
            self._opened = message
            self._complete()

    def wanted(self, message: EpochWanted) -> None:
        """A worker waits for the epoch after this one."""
        self._wanted = self._wanted or message.after >= max(self._epoch, self._declared or 0)

    def written(self, message: ImageWritten) -> None:
        """An interval has written its part."""
        if message.epoch == self._epoch:
            self._written[message.interval] = message
            self._complete()

    def _complete(self) -> None:
        if self._opened is None or self._declaring or self._epoch == 0:
            return
        written = {interval: part.sequencer for interval, part in self._written.items()}
        if written == self._opened.owners and not self._over:
            self._declaring = True
            self._begin(self._declare(self._opened))

    def _declare(self, opened: EpochOpened) -> Steps:
        stored = dict(self._stored if self._stored is not None else self._values())
        for part in self._written.values():
            for name, value in part.reached.items():
                stored[name] = max(value, stored.get(name, value))
        declaration = Declaration(
            epoch=self._epoch,
            owners=opened.owners,
            positions=opened.positions,
            watermarks={name: value for name, value in stored.items() if value > MIN_TIME},
            sinks=[(i, Seq(part.sinks)) for i, part in sorted(self._written.items()) if part.sinks],
            term=self._term,
        )
        try:
            while self._durable and not (yield DeclareEpoch(declaration)):
                if self._over:
                    return
                owners = {**opened.owners, **{write.interval: write.sequencer for write in opened.positions}}
                self._tell(Disowned(tuple(sorted(owners.items()))))
                yield Pause(limits.OWNER_CHECK_US)
        except RowRefused as refusal:
            if self._over:  # all has gone back, and the next owners know nothing of it
                return
            self._over = True
            self._refusal = EpochRefused(self._epoch, refusal.interval, refusal.seq, refusal.rows)
            self._tell(self._refusal)
            return
        if self._over:
            return
        if declaration.epoch != self._epoch:
            raise InvariantError(f"epoch {declaration.epoch} is declared while {self._epoch} runs")
        self._declared, self._epoch, self._declaring = self._epoch, 0, False
        self._tell(EpochDeclared(self._declared))
