"""What waits to run in one interval: bundles in the order of their arrival, cut where an invocation is full."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from millwheel import limits
from millwheel.core.faults.suspects import Suspects
from millwheel.core.interval.arrivals import Item, cut, size_of
from millwheel.limits import RECORD_OVERHEAD_BYTES
from millwheel.model import MAX_TIME


class Inbox(deque[Item]):
    """A queue of items."""

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0
        self.records = 0
        """That wait."""

    def put(self, item: Item) -> None:
        """Behind everything else."""
        self.append(item)
        self.size_bytes += item.size_bytes
        self.records += _count(item)

    def put_back(self, items: Sequence[Item]) -> None:
        """What was taken did not run: it is before everything else again."""
        self.extendleft(reversed(items))
        self.size_bytes += sum(item.size_bytes for item in items)
        self.records += sum(map(_count, items))

    def first(self) -> Item | None:
        """What is taken next, or None when empty."""
        return self[0] if self else None

    def oldest(self) -> int:
        """The smallest event time that waits, or MAX_TIME."""
        return min((item.oldest for item in self), default=MAX_TIME)

    def first_oldest(self) -> Item:
        """The item with the smallest event time."""
        return min(self, key=lambda item: item.oldest)

    def take(self, records: int, suspects: Suspects) -> list[Item]:
        """What runs next, at most `records` records, and what is suspected of killing the process by itself.

        A bundle is cut only where it would leave the invocation small.
        """
        items: list[Item] = []
        taken = size = 0
        while self and taken < records and size < limits.WORK_LIMIT_BYTES:
            part = self[0].part
            room = suspects.room(part, records - taken, taken > 0)
            if not room or (taken >= limits.WHOLE_BUNDLES_RECORDS and part is not None and len(part.keys) > room):
                break
            item = self._take_first(room, limits.WORK_LIMIT_BYTES - size)
            self.size_bytes -= item.size_bytes
            self.records -= _count(item)
            size += item.size_bytes
            items.append(item)
            if item.part is not None and item.part.keys:
                taken += len(item.part.keys)
                if suspects.suspects(item.part, 0):
                    break
        return items

    def _take_first(self, records: int, size_bytes: int) -> Item:
        """The first bundle, or as much of it as there is room for; the ack goes with its end."""
        item = self[0]
        part = item.part
        if part is None or (len(part.keys) <= records and item.size_bytes <= size_bytes):
            return self.popleft()
        if item.size_bytes > size_bytes:
            sizes = accumulate(len(value) + RECORD_OVERHEAD_BYTES for value in part.values)
            records = min(records, max(1, sum(1 for size in sizes if size <= size_bytes)))
        if len(part.keys) <= records:
            return self.popleft()
        head, tail = cut(part, 0, records), cut(part, records, len(part.keys))
        rest = Item(tail, item.sender, item.number, min(tail.timestamps), size_of(tail), item.dropped, item.inherited)
        self[0] = rest
        return Item(head, item.sender, 0, min(head.timestamps), item.size_bytes - rest.size_bytes, [], item.inherited)


def _count(item: Item) -> int:
    return 0 if item.part is None else len(item.part.keys)
