"""Event times that sources give: by a function or the name of a field, in every spelling."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import tzset
from typing import Any

import msgspec
import numpy
import pytest

from millwheel.model import Time
from millwheel_injectors import Csv, FileSource, IterableSource, JsonLines, TextLines
from millwheel_injectors.formats import Format
from millwheel_injectors.times import typed_us
from tests.unit.injectors.drain import only, read_all, reject_lines, rows_of

NOON = "2026-08-01T12:00:00Z"
NOON_US = 1_785_585_600_000_000


class Hit(msgspec.Struct):
    page: str
    at: Any


class Zoned(msgspec.Struct):
    at: datetime


class Renamed(msgspec.Struct, rename="camel"):
    seen_at: str


@dataclass
class Visit:
    at: str


def times_of(source: FileSource[Any]) -> list[int]:
    return [time for _, _, time in rows_of(read_all(only(source)))]


@pytest.mark.parametrize(
    ("form", "name", "line"),
    [
        (JsonLines(), "at", {"at": NOON}),
        (JsonLines(), "at", {"at": NOON_US}),
        (JsonLines(Hit), "at", {"page": "/", "at": NOON}),
        (JsonLines(Zoned), "at", {"at": NOON}),
        (JsonLines(Renamed), "seen_at", {"seenAt": NOON}),
        (JsonLines(Visit), "at", {"at": NOON}),
        (JsonLines(dict[str, str]), "at", {"at": NOON}),
    ],
)
def test_a_field_may_be_named(tmp_path: Path, form: Format[Any], name: str, line: Any) -> None:
    (tmp_path / "rows").write_text(f"{json.dumps(line)}\n")
    assert times_of(FileSource("s", tmp_path / "rows", form, event_time=name)) == [NOON_US]


def test_a_column_of_csv_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text(f"page,at\n/,{NOON}\n")
    assert times_of(FileSource("s", tmp_path / "rows", Csv(Hit, header=True), event_time="at")) == [NOON_US]


@pytest.mark.parametrize("time", [NOON_US, numpy.int64(NOON_US), NOON, datetime(2026, 8, 1, 12, tzinfo=UTC)])
def test_a_function_may_give_any_spelling(tmp_path: Path, time: Any) -> None:
    (tmp_path / "rows").write_text("a\nb\n")
    times = times_of(FileSource("s", tmp_path / "rows", event_time=lambda line: time))
    assert (times, {*map(type, times)}) == ([NOON_US, NOON_US], {int})


def test_a_field_that_values_do_not_have_is_refused_before_anything_is_read() -> None:
    wrong: list[tuple[Any, str]] = [
        (JsonLines(Hit), "values have no field 'time' for event_time; there are page, at$"),
        (JsonLines(Renamed), "there are seen_at$"),
        (JsonLines(Visit), "there are at$"),
        (TextLines(), "source s: values have no field 'time' for event_time$"),
        (None, "values have no field 'time' for event_time$"),
        (Csv(), "values have no field 'time' for event_time$"),
    ]
    for form, said in wrong:
        with pytest.raises(ValueError, match=said):
            FileSource("s", "nowhere", form, event_time="time")


def test_a_row_with_another_time_is_rejected_alone_and_told_what_to_write(tmp_path: Path) -> None:
    rejects = tmp_path / "rejects"
    given = [NOON, 1785585600.5, "2026-08-01T12:00:00", None, NOON_US, 2**70]
    (tmp_path / "rows").write_text("".join(json.dumps({"at": at}) + "\n" for at in given) + "{}\n")
    source = FileSource("s", tmp_path / "rows", JsonLines(), event_time="at", rejects=rejects)
    rows = rows_of(read_all(only(source)))
    assert [(row, time) for row, _, time in rows] == [(0, NOON_US), (4, NOON_US)]
    reasons = {line.row: line.reason for line in reject_lines(rejects)}
    assert set(reasons) == {1, 2, 3, 5, 6}
    assert reasons[1].endswith("for seconds (2026-08-01T12:00:00.500000+00:00) give int(seconds * 1_000_000)")
    assert "has no zone; write 2026-08-01T12:00:00Z if it is UTC" in reasons[2]
    assert "None (NoneType) is no event time" in reasons[3]
    assert "out of range" in reasons[5]
    assert "KeyError: 'at'" in reasons[6]


def test_rows_in_python_have_the_same_times() -> None:
    rows: list[tuple[str, Time]] = [
        ("late", "2026-08-01T12:00:01Z"),
        ("early", datetime(2026, 8, 1, 12, tzinfo=UTC)),
        ("int", NOON_US + 5),
    ]
    for source in (IterableSource("s", rows), IterableSource("s", lambda: iter(rows))):
        found = rows_of(read_all(only(source)))
        assert [(value, time - NOON_US) for _, value, time in found] == [("late", 1_000_000), ("early", 0), ("int", 5)]
    assert only(IterableSource("s", rows)).watermark() == NOON_US  # exact, of all spellings


@pytest.mark.parametrize("row", [(0, "to"), (NOON_US, Hit("/", 1)), (5, {"at": 5}), (5, None), (5, True)])
def test_rows_the_other_way_round_are_refused_before_anything_is_read(row: Any) -> None:
    with pytest.raises(ValueError, match=r"source s: rows are \(value, event time\), and .* is the other way round"):
        IterableSource("s", [row])


@pytest.mark.parametrize("row", [(5, 1.5), (NOON_US, 20.5), (20, 1785585600.5)])
def test_a_float_in_the_place_of_the_time_is_told_what_a_time_is_and_not_that_it_is_the_value(row: Any) -> None:
    with pytest.raises(ValueError) as refused:
        IterableSource("s", [row])
    said = str(refused.value)
    assert said.startswith(
        f"source s: rows are (value, event time), and of {row!r} {row[1]!r} is a float; an event time is"
    )
    assert "an int of microseconds since 1970" in said
    assert "other way round" not in said
    assert said.endswith("give int(seconds * 1_000_000)")


@pytest.mark.parametrize(
    "row", [(0, 1), ("to", "be"), (5, NOON), ("to", 1.5), (Hit("/", 1), 5), (5, datetime(2026, 8, 1, 12))]
)
def test_what_may_be_meant_is_left_to_the_run(row: Any) -> None:
    IterableSource("s", [row])


def test_a_time_without_a_zone_in_a_typed_column_is_utc_wherever_the_process_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    tzset()
    try:
        assert typed_us(datetime(1970, 1, 1, 0, 0, 1)) == 1_000_000
    finally:
        monkeypatch.undo()
        tzset()
