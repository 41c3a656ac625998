"""What is committed and not folded yet: the tail of an interval's log, as the core holds it (§6.1.2).

Lives here: which checkpoints a fold takes, and when one is due.  Invariant: a fold is a contiguous prefix of committed
images of one epoch, never the cache, which is ahead of them; nor does it know of acks of a later epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

import msgspec

from millwheel import limits
from millwheel.bundles import Acked, Checkpoint
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId
from millwheel.limits import FOLD_LIMIT_ROWS


class Logged(msgspec.Struct, gc=False):
    """A committed checkpoint and the size of its log row."""

    seq: Seq
    size_bytes: int
    image: Checkpoint
    ids: int
    """Of outside clients."""
    keys: int
    """Writes of keys' state."""


class CommittedLog:
    """Committed checkpoints of one interval, oldest first.

    A checkpoint is *settled* when the acks of all its productions are durable too.  A fold of a settled checkpoint stores
    none of its productions.  An earlier fold would insert each of them, only for the next fold to delete it.
    """

    def __init__(self, frontier: Callable[[SubscriptionId, ProducerId], SequenceNumber]) -> None:
        self._frontier = frontier
        """Gives the frontier of a subscription and a producer: below it, every production's ack is durable."""
        self._rows: deque[Logged] = deque()
        self._bytes = 0
        self._settled = 0
        self._settled_bytes = 0
        self._settled_ids = 0
        self._settled_keys = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, seq: Seq, size_bytes: int, image: Checkpoint) -> None:
        """The checkpoint after those that are here is durable."""
        self._rows.append(Logged(seq, size_bytes, image, _ids_of(image), _keys_of(image)))
        self._bytes += size_bytes

    def due(self, goal: Seq, hurry: bool, keys: int = 0) -> bool:
        """True when a fold should start.

        Everything up to seq `goal` must be folded.  With `hurry`, any settled checkpoint is a reason to fold.  `keys` is the
        number of distinct keys in the log.
        """
        if not self._rows:
            return False
        self._settle()
        return (
            self._pressed(goal)
            or self._settled_bytes >= limits.FOLD_TRIGGER_BYTES
            or self._settled >= limits.FOLD_TRIGGER_CHECKPOINTS
            or self._settled_ids >= limits.FOLD_TRIGGER_IDS
            or min(keys, self._settled_keys) >= limits.FOLD_TRIGGER_KEYS
            or (hurry and self._settled > 0)
        )

    def full(self) -> bool:
        """True when nothing may be added until a fold has made room."""
        factor = limits.LOG_FULL_FACTOR
        return (
            self._bytes >= factor * limits.LOG_LIMIT_BYTES or len(self._rows) >= factor * limits.LOG_LIMIT_CHECKPOINTS
        )

    def _pressed(self, goal: Seq) -> bool:
        """True when a fold cannot wait for acks."""
        return (
            self._rows[0].seq <= goal
            or self._bytes >= limits.LOG_LIMIT_BYTES
            or len(self._rows) >= limits.LOG_LIMIT_CHECKPOINTS
        )

    def _settle(self) -> None:
        while self._settled < len(self._rows):
            row = self._rows[self._settled]
            for produced in row.image.produced:
                if self._frontier(produced.subscription, produced.producer) < produced.first + len(produced.keys):
                    return
            self._settled += 1
            self._settled_bytes += row.size_bytes
            self._settled_ids += row.ids
            self._settled_keys += row.keys

    def prefix(self, goal: Seq) -> tuple[Seq, list[Checkpoint], list[Acked]]:
        """(upto, images, later acks) of the next fold: as much as one short transaction can do, of one epoch.

        A key that is written in all of the images is one row, so keys are counted once.
        """
        taken: list[Checkpoint] = []
        keys: set[str] = set()
        rows = 0
        upto = Seq(0)
        epoch = self._rows[0].image.epoch
        for place, row in enumerate(islice(self._rows, None if self._pressed(goal) else self._settled)):
            keys |= row.image.state.keys()
            rows += _rows_of(row.image)
            if place >= self._settled:
                rows += sum(len(produced.keys) for produced in row.image.produced)
            if row.image.epoch != epoch or (taken and len(keys) + rows > FOLD_LIMIT_ROWS):
                break
            taken.append(row.image)
            upto = row.seq
        after = islice(self._rows, len(taken), None)
        later = [acked for row in after if row.image.epoch == epoch for acked in row.image.acked]
        return upto, taken, later

    def folded(self, upto: Seq) -> list[Checkpoint]:
        """Everything up to `upto` is in the tables; the images that are."""
        gone = []
        while self._rows and self._rows[0].seq <= upto:
            row = self._rows.popleft()
            gone.append(row.image)
            self._bytes -= row.size_bytes
            if self._settled:
                self._settled -= 1
                self._settled_bytes -= row.size_bytes
                self._settled_ids -= row.ids
                self._settled_keys -= row.keys
        return gone


def _rows_of(image: Checkpoint) -> int:
    """Rows that a fold of this image touches besides its keys' state and its productions."""
    written = len(image.timers.keys) + len(image.holds.keys) + len(image.forgotten) + len(image.quarantined)
    return written + _ids_of(image) // 8


def _keys_of(image: Checkpoint) -> int:
    """Writes of keys' state, of one cell each."""
    return sum(len(writes.keys) for writes in image.state.cells)


def _ids_of(image: Checkpoint) -> int:
    """Ids of outside clients.  Their number starts a fold by a limit of its own (`limits.FOLD_TRIGGER_IDS`)."""
    return sum(len(outside.ids) for outside in image.outside)
