"""The queue of a partition that clients push to, against a list of what they brought."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from millwheel import limits
from millwheel.transport.push_queue import PushAccount, Pushed, PushQueue

CLIENT_RECORDS, CLIENT_BYTES, TOTAL_BYTES = 5, 20 + 2 * limits.RECORD_OVERHEAD_BYTES, 4 * limits.RECORD_OVERHEAD_BYTES


class Brought(msgspec.Struct):
    """A record, and what became of it."""

    client: int
    number: int
    id: bytes
    value: bytes
    kept: bool = False

    @property
    def size(self) -> int:
        return len(self.id) + len(self.value) + limits.RECORD_OVERHEAD_BYTES


STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 2), st.lists(st.binary(max_size=9), max_size=4)),
    st.tuples(st.just("read"), st.integers(1, 5), st.integers(1, 20)),
    st.tuples(st.just("keep"), st.integers(0, 4), st.none()),
    st.tuples(st.just("refuse"), st.integers(0, 4), st.none()),
    st.tuples(st.just("leave"), st.integers(0, 2), st.none()),
)


class Model:
    """Three clients of one queue, and all that they brought, in its order."""

    def __init__(self) -> None:
        self.queue, self.news = PushQueue(), list[int]()
        self.accounts: list[PushAccount] = [self.queue.join(lambda at=at: self.news.append(at)) for at in range(3)]  # type: ignore[misc]
        self.all: list[Brought] = []
        self.read = self.position = 0
        self.refused: list[list[int]] = [[], [], []]
        self.gone: set[int] = set()

    def held(self, client: int | None = None) -> int:
        return sum(one.size for one in self.all if not one.kept and client in (None, one.client))

    def put(self, client: int, values: list[bytes]) -> None:
        account = self.accounts[client]
        first = account.brought
        ids = [value * 2 for value in values]  # longer than values: both count
        self.queue.put(account, Pushed(ids, values, [1] * len(values)))
        self.all += [
            Brought(client, first + at, id_, value) for at, (id_, value) in enumerate(zip(ids, values, strict=True))
        ]

    def take(self, limit: int, limit_bytes: int) -> None:
        want, room = list[bytes](), limit_bytes
        for one in self.all[self.read :]:
            if len(want) == limit or room <= 0:
                break
            room -= len(one.id) + len(one.value)
            want.append(one.value)
        rows = self.queue.read(limit, limit_bytes)
        assert [(row.row, row.value) for row in rows] == [*enumerate(want, self.read)]
        self.read += len(want)

    def keep(self, more: int) -> None:
        full = self.held() >= TOTAL_BYTES
        self.news.clear()
        told = (
            {0, 1, 2}
            if full
            else {one.client for one in self.all[self.position : min(self.position + more, self.read)]}
        )
        for one in self.all[self.position : min(self.position + more, self.read)]:
            one.kept = True
        self.position = min(self.position + more, self.read)
        self.queue.keep(self.position)
        assert sorted(self.news) == sorted(told - self.gone)

    def refuse(self, before: int) -> None:
        row = self.read - 1 - before
        if row >= self.position:
            self.queue.refuse(row, "no")
            self.refused[self.all[row].client].append(self.all[row].number)

    def leave(self, client: int) -> None:
        if client not in self.gone:
            self.gone.add(client)
            self.queue.leave(self.accounts[client])

    def check(self) -> None:
        assert self.queue.held_bytes == self.held()
        assert self.queue.clients == 3 - len(self.gone)
        for client, account in enumerate(self.accounts):
            mine = [one for one in self.all if one.client == client]
            assert (account.brought, account.kept) == (len(mine), sum(one.kept for one in mine))
            assert account.held_bytes == self.held(client)
            assert [number for number, _ in account.refused] == self.refused[client]
            waits = len(mine) - account.kept
            room = waits < CLIENT_RECORDS and self.held(client) < CLIENT_BYTES and self.held() < TOTAL_BYTES
            assert self.queue.room(account) == room


@given(st.lists(STEPS, max_size=40))
@example([("put", 0, [b"a"] * 4), ("read", 4, 20), ("keep", 2, None), ("refuse", 1, None)])  # of a part
def test_a_queue_is_a_list_of_what_its_clients_brought(steps: list[tuple[str, int, list[bytes] | int | None]]) -> None:
    with (
        patch.object(limits, "PUSH_CLIENT_RECORDS", CLIENT_RECORDS),
        patch.object(limits, "PUSH_CLIENT_BYTES", CLIENT_BYTES),
        patch.object(limits, "PUSH_TOTAL_BYTES", TOTAL_BYTES),
    ):
        model = Model()
        for step, number, more in steps:
            match step, more:
                case "put", list():
                    if number not in model.gone:
                        model.put(number, more)
                case "read", int():
                    model.take(number, more)
                case "keep", _:
                    model.keep(number)
                case "refuse", _:
                    model.refuse(number)
                case _:
                    model.leave(number)
            model.check()


def test_a_client_may_bring_exactly_as_much_as_its_quota() -> None:
    queue = PushQueue()
    account = queue.join(lambda: None)
    with patch.object(limits, "PUSH_CLIENT_RECORDS", 2):
        for number in range(2):
            assert queue.room(account)
            queue.put(account, Pushed([b"%d" % number], [b""], [1]))
        assert not queue.room(account)


def test_all_who_wait_hear_of_it_when_a_queue_that_was_full_to_the_last_byte_has_room() -> None:
    queue, heard = PushQueue(), list[str]()
    one, other = queue.join(lambda: heard.append("one")), queue.join(lambda: heard.append("other"))
    queue.put(one, Pushed([b"a"], [b"x"], [1]))
    with patch.object(limits, "PUSH_TOTAL_BYTES", queue.held_bytes):
        assert not queue.room(other)
        queue.read(1, 1_000)
        queue.keep(1)
        assert queue.room(other)
    assert sorted(heard) == ["one", "other"]
