"""Records of outside clients on their way into a source: who brought which, and which are durable.

Lives here: order, quotas and accounts.  Never here: sockets, coders, or a clock.  Invariants:

* rows have the numbers 0, 1, … in the order in which they are read, whoever brought them;
* a client hears that a record is done only after everything that it brought before is done too;
* what is read and not done is bounded, for each client and for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from millwheel import limits


class Pushed(msgspec.Struct, frozen=True, gc=False):
    """Records as they come from a client, in columns."""

    ids: list[bytes]
    values: list[bytes]
    timestamps: list[int]


class PushAccount:
    """What one client has brought over one stream."""

    def __init__(self, news: Callable[[], None]) -> None:
        self._news = news
        self.brought = 0
        """Records, from the first of the stream on."""
        self.kept = 0
        """Of these, so many are done, from the first on."""
        self.held_bytes = 0
        """Of what is not done."""
        self.refused: list[tuple[int, str]] = []
        """(number among its records, reason) of those that cannot be taken, which the client does not know yet."""
        self.gone = False

    def notify(self) -> None:
        """There is something to tell the client, or room."""
        if not self.gone:
            self._news()


class _Stretch(msgspec.Struct):
    """Neighbouring rows of one client that were read: `count` rows from `row` on, which are its records from `number` on."""

    row: int
    count: int
    account: PushAccount
    number: int
    sizes: list[int]


class Row(msgspec.Struct, frozen=True, gc=False):
    """A record that is read: its row number, and what the client said."""

    row: int
    id: bytes
    value: bytes
    timestamp: int


class PushQueue:
    """All clients of one partition."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to read."""
        self._waiting: deque[tuple[PushAccount, Pushed, int, int]] = deque()
        """(who, records, how many of these were read, number of the first among the client's records)."""
        self._read: deque[_Stretch] = deque()
        self._accounts: list[PushAccount] = []
        self._next_row = 0
        self.held_bytes = 0

    def join(self, news: Callable[[], None]) -> PushAccount:
        """A client, whose `news` is called when there is something to tell it, or room for more."""
        account = PushAccount(news)
        self._accounts.append(account)
        return account

    def leave(self, account: PushAccount) -> None:
        """A client's stream has ended.  What it brought is still taken."""
        account.gone = True
        self._accounts.remove(account)

    def room(self, account: PushAccount) -> bool:
        """Whether this client may bring more now."""
        return (
            account.brought - account.kept < limits.PUSH_CLIENT_RECORDS
            and account.held_bytes < limits.PUSH_CLIENT_BYTES
            and self.held_bytes < limits.PUSH_TOTAL_BYTES
        )

    def put(self, account: PushAccount, pushed: Pushed) -> None:
        """A client brings records.  It should have `room`."""
        if not pushed.ids:
            return
        size = sum(map(_size, pushed.ids, pushed.values))
        account.held_bytes += size
        self.held_bytes += size
        self._waiting.append((account, pushed, 0, account.brought))
        account.brought += len(pushed.ids)
        self.wake()

    def read(self, limit: int, limit_bytes: int) -> list[Row]:
        """The next rows, at most so many, and no more after so many bytes of ids and values."""
        rows: list[Row] = []
        while self._waiting and len(rows) < limit and limit_bytes > 0:
            account, pushed, begun, number = self._waiting.popleft()
            end = begun
            first = self._next_row
            sizes = []
            while end < len(pushed.ids) and len(rows) < limit and limit_bytes > 0:
                id_, value = pushed.ids[end], pushed.values[end]
                rows.append(Row(self._next_row, id_, value, pushed.timestamps[end]))
                sizes.append(_size(id_, value))
                limit_bytes -= len(id_) + len(value)
                self._next_row += 1
                end += 1
            self._read.append(_Stretch(first, end - begun, account, number + begun, sizes))
            if end < len(pushed.ids):
                self._waiting.appendleft((account, pushed, end, number))
        if self._waiting:
            self.wake()
        return rows

    def refuse(self, row: int, reason: str) -> None:
        """A row that was read cannot be taken."""
        for stretch in reversed(self._read):  # it is one of the last that were read
            if stretch.row <= row < stretch.row + stretch.count:
                stretch.account.refused.append((stretch.number + row - stretch.row, reason))
                return

    def keep(self, position: int) -> None:
        """All rows below `position` are done."""
        told: dict[PushAccount, None] = {}
        was_full = self.held_bytes >= limits.PUSH_TOTAL_BYTES
        while self._read and self._read[0].row < position:
            stretch = self._read[0]
            done = min(position - stretch.row, stretch.count)
            size = sum(stretch.sizes[:done])
            self.held_bytes -= size
            stretch.account.held_bytes -= size
            stretch.account.kept += done
            told[stretch.account] = None
            if done == stretch.count:
                self._read.popleft()
            else:
                stretch.row += done
                stretch.number += done
                stretch.count -= done
                del stretch.sizes[:done]
        for account in self._accounts if was_full else told:
            account.notify()

    @property
    def clients(self) -> int:
        """Streams that are open."""
        return len(self._accounts)


def _size(id_: bytes, value: bytes) -> int:
    return len(id_) + len(value) + limits.RECORD_OVERHEAD_BYTES
