"""What is refused before anything is written."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.bundles import LogWrite, SinkRow
from millwheel.errors import RowRefused, WiringError
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import SinkTable
from millwheel.rows import check_row
from millwheel_storage.schema.reserved import RESERVED_NAMES
from millwheel_storage.sink_rows import blame, check_table, coalesce, parts

KINDS = {
    "t": "text",
    "b": "bigint",
    "i": "integer",
    "d": "double precision",
    "o": "boolean",
    "z": "timestamptz",
    "y": "date",
    "j": "jsonb",
    "n": "numeric",
    "u": "uuid",
}
TABLE = SinkTable("out", KINDS, ("t",))


def write(**values: Any) -> LogWrite:
    return LogWrite(IntervalId(1), Sequencer(1), Seq(4), 0, b"", (SinkRow("out", msgspec.json.encode(values)),))


@pytest.mark.parametrize(
    ("column", "given", "kept"),
    [
        ("t", "é", "é"),
        ("b", 2**63 - 1, 2**63 - 1),
        ("b", -(2**63), -(2**63)),
        ("i", -(2**31), -(2**31)),
        ("d", 1, 1.0),
        ("o", False, False),
        ("z", "2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00+00:00"),
        ("z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00+00:00"),
        ("y", "2026-01-01", "2026-01-01"),
        ("j", {"a": [1]}, {"a": [1]}),
        ("j", None, None),
        ("j", {"\\u0000": ["a\\u0000"]}, {"\\u0000": ["a\\u0000"]}),
        ("n", 5, "5"),
        ("n", "1.50", "1.50"),
        ("n", "-0.0", "0.0"),
        ("n", "1E+3", "1000"),
        ("n", "9" * 200, "9" * 200),
        ("n", "1e131071", "1" + "0" * 131_071),
        ("u", "{6F9619FF-8B86-D011-B42D-00C04FC964FF}", "6f9619ff-8b86-d011-b42d-00c04fc964ff"),
    ],
)
def test_a_value_gets_one_spelling(column: str, given: object, kept: object) -> None:
    row = check_row(TABLE, {"t": "key", column: given})
    assert row[column] == kept
    assert list(row) == list(KINDS)


@pytest.mark.parametrize(
    ("column", "given"),
    [
        ("t", 1),
        ("t", "a\0"),
        ("t", None),
        ("b", 2**63),
        ("b", True),
        ("b", "1"),
        ("i", 2**31),
        ("d", "1.0"),
        ("o", 1),
        ("z", "2026-01-01T00:00:00"),
        ("z", "yesterday"),
        ("z", 5),
        ("y", "2026-13-01"),
        ("j", "a\0"),
        ("j", {"a": [{"\0": 1}]}),
        ("n", 1.5),
        ("n", True),
        ("n", "NaN"),
        ("n", "Infinity"),
        ("n", "1e131072"),
        ("n", "1e-16384"),
        ("n", "many"),
        ("u", "6f9619ff"),
        ("u", 5),
        ("other", 1),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(column: str, given: object) -> None:
    with pytest.raises(RowRefused, match="sink table 'out'") as caught:
        coalesce({"out": TABLE}, [write(**{"t": "key", column: given})])
    assert (caught.value.interval, caught.value.seq) == (1, 4)


@pytest.mark.parametrize(
    ("column", "given", "why"),
    [
        ("t", b"a", "not text"),
        ("j", b"a", "bytes"),
        ("j", {"a": [{"b": bytearray(b"a")}]}, "bytes"),
        ("j", math.nan, "nan"),
        ("j", {"a": [1.0, -math.inf]}, "-inf"),
        ("j", ["\ud800"], "surrogates"),
    ],
)
def test_what_json_would_change_in_silence_is_refused(column: str, given: object, why: str) -> None:
    with pytest.raises(ValueError, match=f"column '{column}' .*{why}"):
        check_row(TABLE, {"t": "key", column: given})


@pytest.mark.parametrize("sink", [SinkRow("nowhere", b"{}"), SinkRow("out", b"[1]"), SinkRow("out", b"{")])
def test_what_is_no_row_of_a_table_is_refused(sink: SinkRow) -> None:
    with pytest.raises(RowRefused):
        coalesce({"out": TABLE}, [LogWrite(IntervalId(1), Sequencer(1), Seq(1), 0, b"", (sink,))])


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=40))
def test_blame_finds_the_first_bad_row_of_each_key(rows: list[tuple[str, bool]]) -> None:
    search = blame([key for key, _ in rows])
    written: list[int] = []
    try:
        asked = next(search)
        while True:
            fine = not any(rows[row][1] for row in asked)
            assert all(row not in written for row in asked)
            written += asked if fine else []
            asked = search.send(None if fine else f"no {asked}")
    except StopIteration as found:
        refused = dict(found.value)
    first = {key: next((i for i, row in enumerate(rows) if row == (key, True)), None) for key, _ in rows}
    assert refused.keys() == {row for row in first.values() if row is not None}
    assert all(answer == f"no [{row}]" for row, answer in refused.items())
    # What is before it for its key was written, in order, as it will be when it is done again.
    expected = [i for i, (key, _) in enumerate(rows) if (bad := first[key]) is None or i < bad]
    assert written == sorted(written) == expected


def test_rows_are_coalesced_and_sorted() -> None:
    tables = {"out": TABLE, "also": SinkTable("also", {"k": "bigint"}, ("k",))}
    first = LogWrite(
        IntervalId(1), Sequencer(1), Seq(1), 0, b"", (SinkRow("out", b'{"t": "b"}'), SinkRow("also", b'{"k": 1}'))
    )
    made = coalesce(tables, [first, write(t="a", b=1), write(t="b", b=2)])
    assert [(rows.table.name, list(rows.rows)) for rows in made] == [("also", [(1,)]), ("out", [("a",), ("b",)])]
    assert made[1].rows["b",]["b"] == 2


def deletion(**values: Any) -> SinkRow:
    return SinkRow("out", msgspec.json.encode(values), deleted=True)


def test_of_several_writes_of_a_row_the_last_one_counts() -> None:
    ledger = SinkTable("out", {"n": "numeric", "t": "text"}, ("n",))

    def upsert(n: str) -> SinkRow:
        return SinkRow("out", msgspec.json.encode({"n": n}))

    rows = (upsert("1"), deletion(n="1.00"), deletion(n="2"), upsert("2.0"), upsert("10"), deletion(n="7"))
    (made,) = coalesce(
        {"out": ledger},
        [LogWrite(IntervalId(1), Sequencer(1), Seq(seq), 0, b"", (row,)) for seq, row in enumerate(rows, 1)],
    )
    assert [row["n"] for row in made.rows.values()] == ["2.0", "10"]
    assert made.places == [4, 5]
    assert list(made.deleted.values()) == [{"n": "1.00"}, {"n": "7"}]
    assert made.deleted_places == [2, 6]
    assert not made.contested


@pytest.mark.parametrize("others", [(2, 1), (1, 2)], ids=["another interval", "the next owner of the interval"])
def test_owners_who_delete_and_write_one_row_contest_it(others: tuple[int, int]) -> None:
    writes = [
        LogWrite(IntervalId(interval), Sequencer(sequencer), Seq(1), 0, b"", (row,))
        for (interval, sequencer), row in (((1, 1), deletion(t="a")), (others, write(t="a").sinks[0]))
    ]
    assert [rows.contested for rows in coalesce({"out": TABLE}, writes)] == [True]


@pytest.mark.parametrize("values", [{}, {"t": None}, {"t": "a", "b": 1}, {"b": 1}])
def test_what_is_no_key_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(RowRefused, match="sink table 'out'"):
        coalesce({"out": TABLE}, [LogWrite(IntervalId(1), Sequencer(1), Seq(1), 0, b"", (deletion(**values),))])


@pytest.mark.parametrize(
    "table",
    [
        SinkTable('o"; DROP', {"k": "text"}, ("k",)),
        SinkTable("pg_class", {"k": "text"}, ("k",)),
        SinkTable("Checkpoint_Log", {"k": "text"}, ("k",)),
        SinkTable("o", {"k": "text"}, ()),
        SinkTable("o", {"k": "text"}, ("x",)),
        SinkTable("o", {"k": "jsonb"}, ("k",)),
        SinkTable("o", {"k": "text DEFAULT 1"}, ("k",)),
    ],
)
def test_a_table_that_cannot_be_made_safely_is_refused(table: SinkTable) -> None:
    with pytest.raises(WiringError):
        check_table(table, RESERVED_NAMES)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=2, max_size=9))
def test_what_is_refused_together_is_cut_by_owners_and_that_of_one_owner_by_checkpoints(
    owners: list[tuple[int, int]],
) -> None:
    """An owner that was fenced has a part of its own; each part is smaller, so the search for the row ends."""
    writes = [
        LogWrite(IntervalId(interval), Sequencer(sequencer), Seq(seq), 0, b"")
        for seq, (interval, sequencer) in enumerate(owners)
    ]
    cut = [[(write.interval, write.sequencer, write.seq) for write in part] for part in parts(writes)]
    by_owner = [
        [(*owner, seq) for seq, other in enumerate(owners) if other == owner] for owner in dict.fromkeys(owners)
    ]
    assert cut == (by_owner if len(by_owner) > 1 else [[one] for one in by_owner[0]])
