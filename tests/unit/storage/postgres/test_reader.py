"""What is read from outside is what is committed, whether it has been folded or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millwheel import limits
from millwheel.bundles import (
    Acked,
    HoldWrites,
    LogWrite,
    Produced,
    QuarantineEntry,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.ports import Declaration, FoldWrite
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.overlays import StateRow, TimerRow
from millwheel_storage.postgres.reader import Reader
from millwheel_storage.testing import postgres_tables
from tests.unit.storage.samples import image, shape

pytestmark = pytest.mark.postgres

CHANNEL = (SubscriptionId(1), ProducerId(7))


def waiting(sequence: int) -> QuarantineEntry:
    return QuarantineEntry("bad", *CHANNEL, SequenceNumber(sequence), b"v", 5)


FIRST = msgspec.structs.replace(
    image([]),
    state=StateWrites.of([("changed", "", "", b"1"), ("gone", "", "", b"1"), ("kept", "", "", b"1")]),
    timers=TimerWrites(["changed", "gone"], ["t", "t"], ["wall", "wall"], [3, 4]),
    holds=HoldWrites(["gone", "kept"], [1, 2]),
    produced=[Produced(*CHANNEL, SequenceNumber(0), ["acked", "waits"], [b"", b""], [10, 11])],
    quarantined=[waiting(0), waiting(1)],
)
SECOND = msgspec.structs.replace(
    image([]),
    forgotten=["gone"],
    state=StateWrites.of([("changed", "", "", b"2"), ("new", "", "", b"2")]),
    timers=TimerWrites(["changed", "new"], ["t", "t"], ["wall", "wall"], [None, 6]),
    acked=[Acked(*CHANNEL, [SequenceNumber(0)])],
    quarantined=[waiting(2)],
    redriven=[("bad", 1)],
)


def views(postgres: EmbeddedPostgres, pipeline: str) -> dict[str, Any]:
    with Reader(postgres.url, pipeline) as reader:
        return {
            "state": [*reader.scan_state("a")],
            "keys": {key: reader.get_state("a", key) for key in ("changed", "gone", "kept", "new")},
            "timers": reader.timers("a"),
            "holds": reader.holds("a"),
            "oldest": reader.oldest_productions(),
            "quarantined": reader.quarantined(),
            "line": [row.sequence for row in reader.quarantine_rows("a", "bad")],
        }


def test_what_is_read_is_the_same_before_and_after_a_fold(postgres: EmbeddedPostgres, pipeline: str) -> None:
    seen, logs = list[dict[str, Any]](), list[list[int]]()

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        interval = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([interval]))[interval]
        for seq, written in enumerate((FIRST, SECOND), start=1):
            await store.commit([LogWrite(interval, sequencer, Seq(seq), 0, encode_checkpoint(written))])
        for folded in (None, FIRST, SECOND):
            if folded is not None:
                assert await store.fold(FoldWrite(interval, sequencer, Seq(1 + (folded is SECOND)), [folded]))
            seen.append(views(postgres, pipeline))
            with Reader(postgres.url, pipeline) as reader:
                logs.append([*reader.log_lengths().values()])
        await store.close()

    asyncio.run(main())
    first, then, last = seen
    assert logs == [[2], [1], []]
    assert first == then == last
    rows = {"changed": b"2", "kept": b"1", "new": b"2"}
    assert first["state"] == [StateRow(key, "", "", value) for key, value in rows.items()]
    assert first["timers"] == [TimerRow("new", "wall", "t", 6)]
    assert first["holds"] == {"kept": 2}
    assert [(one.kind, one.key, one.timestamp) for one in first["oldest"]] == [("production", "waits", 11)]
    assert first["quarantined"] == [("a", "bad", 2)]
    assert first["line"] == [1, 2]


RELEASED = msgspec.structs.replace(image([]), redriven=[("bad", 2)], released=["bad"])
FAILS_AGAIN = msgspec.structs.replace(image([]), quarantined=[waiting(3)])


@pytest.mark.parametrize("way", ["one by one", "together", "recovery"])
@pytest.mark.parametrize("every", [True, False])
def test_a_release_answers_only_requests_that_were_there_before_it(
    postgres: EmbeddedPostgres, pipeline: str, way: str, every: bool
) -> None:
    """The key has failed again since, and somebody has seen that: the log counts for whoever asks."""
    images, found = [FIRST, RELEASED, FAILS_AGAIN], list[Any]()

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        interval = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([interval]))[interval]

        async def commit(seq: int, written: Any) -> None:
            await store.commit([LogWrite(interval, sequencer, Seq(seq), 0, encode_checkpoint(written))])

        async def fold(first: int, folded: list[Any]) -> None:
            nonlocal sequencer
            if way == "recovery":
                sequencer = (await store.acquire([interval]))[interval]
                assert await store.recover(interval, sequencer) is not None
                return
            for seq, one in enumerate(folded, start=first) if way == "one by one" else ():
                assert await store.fold(FoldWrite(interval, sequencer, Seq(seq), [one]))
            if way == "together":
                assert await store.fold(FoldWrite(interval, sequencer, Seq(first + len(folded) - 1), folded))

        def ask() -> None:
            with Reader(postgres.url, pipeline) as reader:
                if every:
                    assert reader.request_redrives("a") == 1
                else:
                    reader.request_redrive("a", "bad")

        await commit(1, FIRST)
        ask()
        await commit(2, RELEASED)
        await commit(3, FAILS_AGAIN)
        ask()
        await fold(1, images)
        found.append(await store.redrive_requests(("", ""), 9))
        await commit(4, msgspec.structs.replace(RELEASED, redriven=[("bad", 1)]))
        await fold(4, [msgspec.structs.replace(RELEASED, redriven=[("bad", 1)])])
        found.append(await store.redrive_requests(("", ""), 9))
        await store.close()

    asyncio.run(main())
    assert found == [[("a", "bad")], []]


BOTH = msgspec.structs.replace(RELEASED, quarantined=[waiting(3)])
"""One checkpoint releases the key, and it fails again."""


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
@pytest.mark.parametrize("owner", ["the same", "another"])
def test_a_request_that_comes_right_after_a_release_is_not_answered_by_it(
    postgres: EmbeddedPostgres, pipeline: str, owner: str, kind: type[MemoryStore] | type[PostgresStore]
) -> None:
    """A new owner's checkpoints come after all of an earlier one's, whatever their numbers are."""
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)

    async def main() -> None:
        interval = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([interval]))[interval]
        await store.commit([LogWrite(interval, sequencer, Seq(5), 0, encode_checkpoint(FIRST))])
        seq = Seq(6)
        if owner == "another":
            sequencer, seq = (await store.acquire([interval]))[interval], Seq(1)
        await store.commit([LogWrite(interval, sequencer, seq, 0, encode_checkpoint(BOTH))])
        ask()
        again = (await store.acquire([interval]))[interval]
        assert await store.recover(interval, again) is not None
        assert await store.redrive_requests(("", ""), 9) == [("a", "bad")]
        ask()  # there is no log any more, and the earlier question is not forgotten
        assert tables()["redrive"] == [("a", "bad", sequencer, seq)]
        await store.close()

    def ask() -> None:
        if isinstance(store, MemoryStore):
            store.request_redrive("a", "bad")
            return
        with Reader(postgres.url, pipeline) as reader:
            reader.request_redrive("a", "bad")

    def tables() -> dict[str, list[tuple[Any, ...]]]:
        return store.tables() if isinstance(store, MemoryStore) else postgres_tables(postgres.url, pipeline)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
def test_requests_have_the_place_of_their_own_logs_and_are_read_page_by_page(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore]
) -> None:
    """In the order of computations and keys, whatever other intervals have logged since."""
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)
    keys = [("a", "bad"), ("a", "z"), ("b", "early"), ("b", "late")]
    intervals = dict(zip(keys, map(IntervalId, (1, 2, 3, 3)), strict=True))

    async def main() -> None:
        await store.open_pipeline(shape(pipeline, computations={"a": ("m",), "b": ()}))
        owned = dict[IntervalId, Sequencer]()
        for interval in sorted({*intervals.values()}):  # each has a larger sequencer than the one before
            owned |= await store.acquire([interval])
            failed = [
                msgspec.structs.replace(waiting(0), key=key) for (_, key), of in intervals.items() if of == interval
            ]
            written = encode_checkpoint(msgspec.structs.replace(image([]), quarantined=failed))
            await store.commit([LogWrite(interval, owned[interval], Seq(int(interval)), 0, written)])
        ask()
        assert tables()["redrive"] == [(*place, owned[of], int(of)) for place, of in intervals.items()]
        for start, place in enumerate(keys):
            assert await store.redrive_requests(place, 9) == keys[start:]
            assert await store.redrive_requests((place[0], place[1] + "\0"), 1) == keys[start + 1 : start + 2]
        await store.close()

    def ask() -> None:
        if isinstance(store, MemoryStore):
            for place in keys:
                store.request_redrive(*place)
            return
        with Reader(postgres.url, pipeline) as reader:
            for place in keys:
                reader.request_redrive(*place)

    def tables() -> dict[str, list[tuple[Any, ...]]]:
        return store.tables() if isinstance(store, MemoryStore) else postgres_tables(postgres.url, pipeline)

    asyncio.run(main())


@pytest.mark.parametrize("chunk", [1, 10**6])
def test_a_log_that_is_recovered_in_parts_answers_what_the_whole_answers(
    postgres: EmbeddedPostgres, pipeline: str, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Under snapshots its release is in the log before anybody sees it: what was asked for in between stayed for ever."""
    monkeypatch.setattr(limits, "RECOVERY_CHUNK_BYTES", chunk)
    found = list[Any]()

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        interval = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([interval]))[interval]
        for seq, written in enumerate((FIRST, RELEASED, image([])), start=1):
            epoch = int(seq > 1)
            payload = encode_checkpoint(msgspec.structs.replace(written, epoch=epoch))
            await store.commit([LogWrite(interval, sequencer, Seq(seq), epoch, payload)])
        with Reader(postgres.url, pipeline) as reader:
            assert reader.request_redrives("a") == 1
        assert await store.declare(Declaration(epoch=1, owners={interval: sequencer}))
        found.append(await store.redrive_requests(("", ""), 9))
        sequencer = (await store.acquire([interval]))[interval]
        assert await store.recover(interval, sequencer) is not None
        found.append(await store.redrive_requests(("", ""), 9))
        await store.close()

    asyncio.run(main())
    assert found == [[("a", "bad")], []]
    with Reader(postgres.url, pipeline) as reader:
        assert reader.quarantined() == []
        assert [row.key for row in reader.scan_state("a")] == ["changed", "gone", "kept"]


ASKED: dict[str, Callable[[Reader], object]] = {
    "the state of a key": lambda reader: reader.get_state("b", "k"),
    "all state": lambda reader: [*reader.scan_state("b")],
    "all timers": lambda reader: reader.timers("b"),
    "the timers of a key": lambda reader: reader.timers("b", "k"),
    "holds": lambda reader: reader.holds("b"),
    "keys in quarantine": lambda reader: reader.quarantined_keys("b"),
    "the quarantine of a key": lambda reader: reader.quarantine_rows("b", "k"),
    "a redrive": lambda reader: reader.request_redrive("b", "k"),
    "all redrives": lambda reader: reader.request_redrives("b"),
}


@pytest.mark.parametrize("asked", ASKED)
def test_whoever_asks_about_a_computation_that_is_not_there_is_told_so(
    postgres: EmbeddedPostgres, pipeline: str, asked: str
) -> None:
    """An empty answer would say that the computation has nothing."""

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        await store.open_pipeline(shape(pipeline))
        await store.close()

    asyncio.run(main())
    refused = pytest.raises(StoreError, match=r"computation 'b' is not in the store; it has \['a'")
    with Reader(postgres.url, pipeline) as reader, refused:
        ASKED[asked](reader)
