"""Rows at the injector: keyed, encoded, with the ids that outside clients gave them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import limits
from millwheel.api.context import Output
from millwheel.core.interval.events import RowsRead
from millwheel.errors import LimitError
from millwheel.ids import SubscriptionId
from millwheel.runtime.sources import outside_ids, read_rows
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
