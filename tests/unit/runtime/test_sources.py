"""Rows at the injector: keyed, encoded, with the ids that outside clients gave them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import limits
from millwheel.api.producer import Output
from millwheel.core.interval.events import RowsRead
from millwheel.errors import LimitError, SourceError
from millwheel.ids import SubscriptionId
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.runtime.sources import outside_ids, read_rows
from millwheel.source import Ahead, Batch
from millwheel_injectors import IterableSource

ids = st.text(max_size=60) | st.binary(max_size=60)


@given(st.lists(ids.filter(len), max_size=20))
def test_ids_that_differ_stay_different_and_a_text_is_its_utf8(given: list[str | bytes]) -> None:
    plain = [id_.encode() if isinstance(id_, str) else id_ for id_ in given]
    kept = outside_ids(given)
    assert len(kept) == len(given)
    assert len(set(kept)) == len(set(plain))
    assert all(id_ == as_is or len(id_) == 17 for id_, as_is in zip(kept, plain, strict=True))


def test_a_long_id_is_kept_as_128_bits_that_no_whole_id_can_be_taken_for() -> None:
    long = b"x" * (limits.OUTSIDE_WHOLE_BYTES + 1)
    digest = b"\0" + blake2b(long, digest_size=16).digest()
    assert outside_ids([long]) == [digest]
    assert outside_ids([digest]) != [digest]
    assert outside_ids([long[1:]]) == [long[1:]]


@pytest.mark.parametrize(
    ("id_", "error"), [(7, TypeError), (None, TypeError), ("", LimitError), (b"x" * 1_025, LimitError)]
)
def test_what_is_no_id_is_refused(id_: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="record_id gave"):
        outside_ids(["fine", id_])


def read(
    rows: list[Any], record_id: Any, key: Callable[[Any], Any] = lambda value: "k"
) -> tuple[RowsRead, list[tuple[int, str]]]:
    """All rows, keyed by two subscriptions of which the second takes only some."""
    (partition,) = IterableSource("s", [(value, at) for at, value in enumerate(rows)]).discover(())
    output = Output(
        lambda v: repr(v).encode(),
        ((SubscriptionId(1), key), (SubscriptionId(2), lambda v: "k" if v["n"] % 2 else None)),
    )
    refused: list[tuple[int, str]] = []
    return read_rows(
        partition, output, 100, lambda _, row, why, value: refused.append((row, why)), record_id
    ), refused  # fmt: skip


def test_ids_go_with_their_rows_to_every_subscription() -> None:
    got, refused = read([{"n": n, "id": f"i{n}"} for n in range(4)], lambda value: value["id"])
    assert got.columns[SubscriptionId(1)][1].outside == [b"i0", b"i1", b"i2", b"i3"]
    assert got.columns[SubscriptionId(2)][1].outside == [b"i1", b"i3"]
    assert refused == []


def test_a_row_without_an_id_is_rejected_and_the_others_go_on() -> None:
    rows = [{"n": 1, "id": "a"}, {"n": 3}, {"n": 5, "id": None}, {"n": 7, "id": b"d"}]
    got, refused = read(rows, lambda value: value["id"])
    assert [columns.outside for _, columns in got.columns.values()] == [[b"a", b"d"]] * 2
    assert [row for row, _ in refused] == [1, 2]
    assert refused[1][1] == "TypeError: record_id gave NoneType, not str or bytes"
    assert got.rejected == 2


@pytest.mark.parametrize(("key", "said"), [
    (7, "WiringError: key extractor returned int, not str: 7"),
    ("long" * 300, f"LimitError: key of 1200 bytes: {('long' * 300)[:50]!r}…; limit 1024"),
])  # fmt: skip
def test_a_key_that_is_none_is_told_without_the_name_of_a_partition(key: Any, said: str) -> None:
    # It said "key extractor of 'rows'", which is no stream and nothing that the user has named.
    _, refused = read([{"n": 1}], None, lambda value: key)
    assert refused == [(0, said)]


def test_a_source_without_ids_sends_none() -> None:
    got, _ = read([{"n": 1}], None)
    assert got.columns[SubscriptionId(1)][1].outside == []


class Given:
    """A partition that gives one batch."""

    name = "given"

    def __init__(self, batch: Batch[Any]) -> None:
        self._batch = batch

    def fingerprint(self) -> bytes:
        return b""

    def resume(self, position: int, state: bytes) -> None:
        raise NotImplementedError

    def read(self, limit: int) -> Batch[Any]:
        return self._batch

    def finished(self) -> bool:
        return False

    def watermark(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""


Line = tuple[int, str | None, str | None, int, bytes | None]
"""Length of the value, a key for each subscription, event time, id."""
LONGEST = 10
"""Bytes of a value or of an id, here."""


def about(*exact: int) -> st.SearchStrategy[int]:
    return st.sampled_from([number + beside for number in exact for beside in (-1, 0, 1)])


LINES = st.tuples(
    st.integers(0, LONGEST) | about(LONGEST),
    st.none() | st.sampled_from(["k", "l", "x" * 1_024]) | st.sampled_from(["x" * 1_025, "é" * 512, "é" * 513]),
    st.none() | st.sampled_from(["k", "l"]),
    st.integers(0, 9) | about(MIN_TIME, MAX_TIME),
    st.binary(min_size=1, max_size=3) | about(LONGEST).map(bytes) | st.just(b"") | st.none(),
)
SOUND = LINES.filter(lambda line: may_pass(line, True))


def may_pass(line: Line, with_ids: bool) -> bool:
    size, key, _, time, id_ = line
    sound = size <= LONGEST and (key is None or len(key.encode()) <= 1_024) and MIN_TIME < time < MAX_TIME
    return sound and (not with_ids or (id_ is not None and 0 < len(id_) <= LONGEST))


@settings(max_examples=200)
@given(st.lists(SOUND, min_size=2, max_size=6) | st.lists(SOUND | LINES, max_size=12), st.booleans(), st.integers(0, 3))
def test_each_row_is_keyed_for_its_subscriptions_or_rejected_whatever_stands_beside_it(
    lines: list[Line], with_ids: bool, rejected: int
) -> None:
    rows = [3 * number + 5 for number in range(len(lines))]
    batch = Batch(rows, lines, [line[3] for line in lines], 99, b"state", rejected)
    output = Output(
        lambda line: b"v" * line[0],
        ((SubscriptionId(1), lambda line: line[1]), (SubscriptionId(2), lambda line: line[2])),
    )
    refused: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "VALUE_LIMIT_BYTES", LONGEST)
        patch.setattr(limits, "OUTSIDE_ID_LIMIT_BYTES", LONGEST)
        got = read_rows(
            Given(batch), output, 100, lambda _, row, *why: refused.append(row),
            (lambda line: line[4]) if with_ids else None,
        )  # fmt: skip
        ids = [outside_ids([line[4]])[0] if with_ids and may_pass(line, True) and line[4] else b"" for line in lines]
    sound = [may_pass(line, with_ids) for line in lines]
    assert refused == [row for row, is_sound in zip(rows, sound, strict=True) if not is_sound]
    assert (got.rejected, got.next_position, got.state) == (rejected + len(refused), 99, b"state")
    for which, sub in ((1, SubscriptionId(1)), (2, SubscriptionId(2))):
        at = [number for number, line in enumerate(lines) if sound[number] and line[which] is not None]
        found_rows, columns = got.columns.get(sub, ([], None))
        assert found_rows == [rows[number] for number in at]
        if columns is not None:
            assert columns.keys == [lines[number][which] for number in at]
            assert columns.values == [b"v" * lines[number][0] for number in at]
            assert columns.timestamps == [lines[number][3] for number in at]
            assert columns.outside == ([ids[number] for number in at] if with_ids else [])


class Empty(Given):
    """A partition that has no row now."""

    def __init__(self, finished: bool) -> None:
        self._finished = finished

    def read(self, limit: int) -> Batch[Any] | None:  # type: ignore[override]
        return None

    def read_due(self, limit: int, upto: int) -> tuple[None, Ahead]:
        return None, Ahead(upto + 3, upto + 2, False)

    def finished(self) -> bool:
        return self._finished

    def watermark(self) -> int:
        return 41


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("upto", [None, 70])
def test_a_read_without_rows_says_what_is_known_of_its_partition(finished: bool, upto: int | None) -> None:
    output = Output(lambda value: b"", ((SubscriptionId(1), lambda value: "k"),))
    got = read_rows(Empty(finished), output, 100, lambda *_: None, upto=upto)
    assert (got.columns, got.count, got.progressed, got.rejected) == ({}, 0, False, 0)
    assert (got.finished, got.watermark) == (finished, 41)
    assert got.ahead == (None if upto is None else Ahead(73, 72, False))


@pytest.mark.parametrize("rejected", [0, 2])
@pytest.mark.parametrize(("limit", "full"), [(5, True), (6, False)])
def test_a_read_is_full_when_it_has_as_many_rows_as_were_asked_for_those_that_were_rejected_included(
    rejected: int, limit: int, full: bool
) -> None:
    rows = [*range(5 - rejected)]
    output = Output(lambda value: b"", ((SubscriptionId(1), lambda value: "k"),))
    got = read_rows(Given(Batch(rows, rows, rows, 5, b"", rejected)), output, limit, lambda *_: None)
    assert got.full == full


@pytest.mark.parametrize("short", ["values", "timestamps", "outside"])
def test_a_batch_whose_columns_do_not_fit_names_its_partition(short: str) -> None:
    columns: dict[str, list[Any]] = {"values": [1, 2], "timestamps": [1, 2], "outside": [b"a", b"b"]}
    columns[short].pop()
    batch = Batch([0, 1], columns["values"], columns["timestamps"], 2, b"", outside=columns["outside"])
    output = Output(lambda value: b"", ((SubscriptionId(1), lambda value: "k"),))
    with pytest.raises(SourceError, match="a batch of 'given' has columns of different lengths"):
        read_rows(Given(batch), output, 100, lambda *_: None, lambda value: b"i")
