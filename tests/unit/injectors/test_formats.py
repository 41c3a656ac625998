"""Raw rows and their values."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.errors import SourceError
from millwheel.limits import VALUE_LIMIT_BYTES
from millwheel_injectors import Csv, FileSource, JsonLines, TextLines
from millwheel_injectors.formats import Format, Parsed
from tests.unit.injectors.drain import only, read_all, reject_lines, rows_of


class Hit(msgspec.Struct):
    user: str
    count: int
    score: float = 0.0


@dataclass
class Point:
    x: int
    y: int


def parse(form: Format, *lines: bytes, limit: int = 100, final: bool = True) -> Parsed:
    return form.parser().parse(list(lines), row=0, limit=limit, final=final)


def test_text_lines_lose_carriage_returns_and_keep_blanks() -> None:
    assert parse(TextLines(), b"a\r", b"", b" b ").values == ["a", "", " b "]


@pytest.mark.parametrize("beside", [[], [b"\xff"]])
def test_a_line_loses_one_carriage_return_whether_all_can_be_decoded_or_not(beside: list[bytes]) -> None:
    assert parse(TextLines(), b"a\r\r", b"\r", *beside).values == ["a\r", ""]


def test_a_line_that_is_not_utf8_is_rejected_alone() -> None:
    parsed = parse(TextLines(), b"good", b"\xff\xfe", b"fine")
    assert (parsed.values, list(parsed.rows)) == (["good", "fine"], [0, 2])
    assert [(r.row, r.raw) for r in parsed.rejects] == [(1, b"\xff\xfe")]
    assert parsed.rejects[0].reason.startswith("not utf-8")


def test_latin1_takes_every_byte() -> None:
    assert parse(TextLines("latin-1"), bytes(b for b in range(256) if b != 10)).rejects == []


def test_an_encoding_with_wide_newlines_is_refused() -> None:
    with pytest.raises(ValueError, match="utf-16"):
        TextLines("utf-16")


def test_json_lines_are_typed_and_blank_lines_are_nothing() -> None:
    parsed = parse(JsonLines(Hit), b'{"user":"a","count":1}', b"", b'{"user":"b"}', b"{", b'{"user":"c","count":2} {}')
    assert parsed.values == [Hit("a", 1)]
    assert [r.row for r in parsed.rejects] == [2, 3, 4]
    assert len(parsed.raws) == 5


def test_json_text_that_is_not_utf8_is_rejected() -> None:
    parsed = parse(JsonLines(), b'"\xff"', b"1")
    assert (parsed.values, [r.row for r in parsed.rejects]) == ([1], [0])


def test_csv_by_position_header_columns_and_type() -> None:
    lines = [b"user,count,score", b"a,1,2.5"]
    assert parse(Csv(), *lines).values == [["user", "count", "score"], ["a", "1", "2.5"]]
    assert parse(Csv(header=True), *lines).values == [{"user": "a", "count": "1", "score": "2.5"}]
    assert parse(Csv(header=True, columns=["x", "y", "z"]), *lines).values == [{"x": "a", "y": "1", "z": "2.5"}]
    assert parse(Csv(Hit, header=True), *lines).values == [Hit("a", 1, 2.5)]
    assert parse(Csv(Hit), lines[1]).values == [Hit("a", 1, 2.5)]
    assert parse(Csv(Point), b"1,2").values == [Point(1, 2)]


def test_csv_rows_that_do_not_fit_are_rejected() -> None:
    parsed = parse(Csv(Hit), b"a,1,1", b"b,many,1", b"c,1", b"", b'"d"x,1,1', b"e,2,2")
    assert parsed.values == [Hit("a", 1, 1.0), Hit("e", 2, 2.0)]
    assert [(r.row, r.raw) for r in parsed.rejects] == [(1, b"b,many,1"), (2, b"c,1"), (4, b'"d"x,1,1')]
    assert "2 fields, expected 3" in parsed.rejects[1].reason


def test_a_quoted_newline_is_part_of_one_raw_row() -> None:
    parsed = parse(Csv(), b'1,"two', b'lines, ""quoted""",x', b"2,b,y", b'3,"c"\r')
    assert parsed.values == [["1", 'two\nlines, "quoted"', "x"], ["2", "b", "y"], ["3", "c"]]
    assert list(parsed.rows) == [0, 1, 2]
    assert parsed.lines == 4


def test_a_stray_quote_inside_a_field_is_text() -> None:
    assert parse(Csv(), b'5" pipe,3', b"x,y").values == [['5" pipe', "3"], ["x", "y"]]


def test_an_open_quote_waits_for_more_lines_until_the_end() -> None:
    parsed = parse(Csv(), b"a,b", b'c,"open', b"still", final=False)
    assert (parsed.values, parsed.lines) == ([["a", "b"]], 1)
    parsed = parse(Csv(), b"a,b", b'c,"open', b"still", final=True)
    assert [(r.row, r.raw) for r in parsed.rejects] == [(1, b'c,"open\nstill')]


def test_a_record_that_never_ends_is_cut_at_the_limit() -> None:
    line = b"x" * (1 << 20)
    lines = [b'"open', *[line] * (VALUE_LIMIT_BYTES // len(line) + 1), b"a,b"]
    for final in (False, True):
        parsed = parse(Csv(), *lines, final=final)
        assert (parsed.values[-1], len(parsed.raws), len(parsed.rejects)) == (["a", "b"], 3, 1)


def test_without_a_quote_character_quotes_are_text() -> None:
    assert parse(Csv(delimiter="\t", quote=None), b'a\t"b', b'"c"\td').values == [["a", '"b'], ['"c"', "d"]]


def test_csv_bytes_that_are_not_text_are_rejected() -> None:
    parsed = parse(Csv(), b'a,"b"', b"\xff,x", b"c,d")
    assert (list(parsed.rows), [r.row for r in parsed.rejects]) == ([0, 2], [1])


@given(
    st.lists(st.lists(st.text(st.sampled_from('a", \n\r1')), min_size=1, max_size=3), max_size=8),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_csv_records_do_not_depend_on_how_lines_are_offered(records: list[list[str]], limit: int, offer: int) -> None:
    text = "".join(",".join('"' + f.replace('"', '""') + '"' for f in r) + "\n" for r in records)
    lines = text.encode().split(b"\n")[:-1]
    parser = Csv().parser()
    values: list[Any] = []
    row, window = 0, offer
    while lines:
        parsed = parser.parse(lines[:window], row, limit, final=window >= len(lines))
        if not parsed.lines:
            window += offer
            continue
        assert parsed.rejects == []
        values += parsed.values
        row += len(parsed.raws)
        lines, window = lines[parsed.lines :], offer
    assert values == records


def test_lines_longer_than_the_limit_are_rejected_whole(tmp_path: Path) -> None:
    from millwheel_injectors import FileSource

    path = tmp_path / "x.log"
    path.write_bytes(b"a\n" + b"y" * (VALUE_LIMIT_BYTES + 1) + b"\nb\n")
    source = FileSource("x", path, rejects=tmp_path / "rejects")
    batches = read_all(only(source))
    assert [(row, value) for row, value, _ in rows_of(batches)] == [(0, "a"), (2, "b")]
    assert b'"offset":%d,' % path.stat().st_size in batches[-1].state
    (line,) = reject_lines(tmp_path / "rejects")
    assert (line.row, line.reason) == (1, f"longer than {VALUE_LIMIT_BYTES} bytes")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path, packed: bool, encoding: str) -> None:
    def read(form: Format, data: bytes, limit: int = 1) -> list[Any]:
        path = tmp_path / f"{type(form).__name__}-{len(data)}"
        path.write_bytes(gzip.compress(data) if packed else data)
        source = FileSource("x", path, form, rejects=tmp_path / "rejects")
        partition = only(source)
        found = [value for b in read_all(partition, limit) for value in b.values]
        again = only(FileSource("x", path, form))
        again.resume(1, again.fingerprint())
        assert [value for b in read_all(again) for value in b.values] == found[0 if form.head_lines == 2 else 1 :]
        return found

    mark = b"\xef\xbb\xbf"
    assert read(TextLines(encoding), mark + b"x\n" + mark + b"y\n") == ["x", "\ufeffy"]
    assert read(JsonLines(), mark + b'{"a":1}\n{"a":2}\n') == [{"a": 1}, {"a": 2}]
    assert read(Csv(header=True, encoding=encoding), mark + b'"a",b\n1,2\n') == [{"a": "1", "b": "2"}]
    assert reject_lines(tmp_path / "rejects") == []


def test_a_header_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes("a,b\n1,2\n".encode("utf-16"))
    for form in (Csv(header=True), Csv(Hit, header=True), Csv(columns=["a", "b"], header=True)):
        with pytest.raises(SourceError, match=rf"{tmp_path}/rows\.csv: the header is not utf-8; give its encoding"):
            read_all(only(FileSource("x", tmp_path / "rows.csv", form)))


def test_a_header_that_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(SourceError, match=rf"{tmp_path}/rows\.csv: the header names column 'a' twice; give columns="):
        read_all(only(FileSource("x", tmp_path / "rows.csv", Csv(header=True))))
    named = FileSource("x", tmp_path / "rows.csv", Csv(columns=["a", "b", "c"], header=True))
    assert [b.values for b in read_all(only(named))] == [[{"a": "1", "b": "2", "c": "3"}]]
