"""When what an invocation did is durable, and what is released then: one part behind one interface.

Lives here: the interface.  There are two ways: the log (`log`), and snapshots at barriers (`durable_epochs`).  Between two
snapshots nothing is logged, so that all that was put since the last one becomes durable together.  Never here: what a
checkpoint holds (`checkpoint`), or what runs next.  Rules of every way:

* what was put becomes durable in the order of putting.  In the log, an ack or a strong production leaves when all before it
  is; under snapshots both leave at once, and nothing durable rests on them before their epoch is declared;
* everything is of an epoch: images, with the columns that they produce and the acks that they record, bundles, acks and
  folds.  An epoch never falls, and no fold crosses one.
"""

from __future__ import annotations

from typing import Protocol

from millwheel.bundles import Checkpoint
from millwheel.core.durability.inflight import Uncommitted
from millwheel.core.interval import events as ev
from millwheel.ids import Seq
from millwheel.work import Cause


class Durability(Protocol):
    """Of one interval under one owner."""

    epoch: int
    """What is put now belongs to it."""
    seq: Seq
    """Of the newest checkpoint."""

    # --- what runs ------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """False while no user code may run: too much is not durable, or not in the tables."""
        ...

    def commits_less_than(self, records: int) -> bool:
        """True while what would be put now has to wait for a commit, and that one is of fewer records and timers."""
        ...

    def next_seq(self) -> Seq:
        """Count: the number of the checkpoint that is made now."""
        ...

    def put(self, entry: Uncommitted, effects: list[ev.Effect], now: int) -> None:
        """What an invocation did, with the acks and productions that are released when it is durable."""
        ...

    def submit(self, effects: list[ev.Effect], now: int) -> None:
        """Have the store told of what may be told now."""
        ...

    # --- what is heard --------------------------------------------------------------------------------------------

    def acked(self, number: int, now: int, epoch: int = 0) -> None:
        """A receiver has made a bundle durable, under the label `epoch`."""
        ...

    def committed(self, seq: Seq, effects: list[ev.Effect]) -> None:
        """The store has checkpoint `seq`."""
        ...

    def refused(self, seq: Seq, effects: list[ev.Effect]) -> list[tuple[Cause, bool]]:
        """The database refuses sink rows of checkpoint `seq`, which is void with all that was put after it.

        Returns what wrote each of its sink rows, and whether that was a redrive.
        """
        ...

    def folded(self, upto: Seq) -> list[Checkpoint]:
        """Checkpoints up to `upto` are in the tables: their images."""
        ...

    # --- what is left ---------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """Whether anything that was put is not durable."""
        ...

    def settled(self, acked: bool) -> bool:
        """True when all that was put is durable and in the tables; and all productions are, if asked for, acked for good."""
        ...

    def quiet(self) -> bool:
        """True when all is durable and in the tables, acks and frontiers included."""
        ...

    def oldest(self) -> int:
        """The smallest event time that waits to be durable, or MAX_TIME."""
        ...

    def kept_back(self) -> list[int]:
        """Numbers of the bundles that must not leave yet."""
        ...

    # --- what is wanted -------------------------------------------------------------------------------------------

    def want(self) -> None:
        """All that was put is wanted in the tables, however little it is."""
        ...

    def end(self) -> None:
        """The same, and acks and frontiers recorded as soon as nothing runs: the run ends."""
        ...

    def rest(self, busy: bool, effects: list[ev.Effect], now: int) -> None:
        """After every event: when the interval is not `busy` for long, record what is worth it."""
        ...

    def fold(self, effects: list[ev.Effect]) -> None:
        """After every event: bring to the tables what is due."""
        ...

    def alarm(self) -> int:
        """Wall time, us, at which `submit` or `rest` have something to do by the clock, or MAX_TIME."""
        ...
