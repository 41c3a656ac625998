"""CSV of any quotes and lengths: no line is lost, and records do not depend on how many lines were offered at once."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from millwheel_injectors import Csv, JsonLines, TextLines, formats
from millwheel_injectors.formats import Format
from millwheel_injectors.streams import Oversized

LIMIT = 12


def records(
    lines: list[bytes], offer: int, limit: int
) -> tuple[list[tuple[int, list[str]]], list[tuple[int, str]], bytes]:
    """Values and reasons by row, and the bytes that rows were made of, as a partition reads them."""
    parser = Csv().parser()
    values, reasons, at = [], [], 0
    raws: list[bytes] = []
    while at < len(lines):
        wanted = offer
        while True:
            offered = lines[at : at + wanted]
            final = at + len(offered) == len(lines)
            parsed = parser.parse(offered, len(raws), limit, final)
            if parsed.lines:
                break
            assert not final
            wanted *= 2
        assert len(parsed.raws) <= limit
        values += [(len(raws) + row, value) for row, value in zip(parsed.rows, parsed.values, strict=True)]
        reasons += [(len(raws) + reject.row, reject.reason) for reject in parsed.rejects]
        raws += parsed.raws
        at += parsed.lines
    return values, reasons, b"\n".join(raws)


@given(
    text=st.lists(st.sampled_from(["a,b", '"a', 'b"', "c", '"d",e', '"d"e', "", '"', "f" * 5]), max_size=20).map(
        "\n".join
    ),
    offer=st.integers(1, 5),
    limit=st.integers(1, 5),
)
def test_no_line_is_lost_and_the_rows_are_the_same_whatever_is_offered(text: str, offer: int, limit: int) -> None:
    lines = text.encode().split(b"\n")
    with patch.object(formats, "VALUE_LIMIT_BYTES", LIMIT):
        whole = records(lines, len(lines), len(lines))
        assert records(lines, max(offer, limit), limit) == whole
        assert whole[2] == text.encode()


def test_lines_behind_a_quote_that_never_ends_are_rows_again_once_the_record_is_too_long() -> None:
    lines = [b'"open', b"1,2", b"3,4,5", b"6,7", b"8,9"]
    with patch.object(formats, "VALUE_LIMIT_BYTES", LIMIT):
        values, reasons, _ = records(lines, 2, 2)
    assert values == [(1, ["6", "7"]), (2, ["8", "9"])]
    assert reasons == [(0, f"longer than {LIMIT} bytes")]


def test_the_beginning_of_a_line_that_is_too_long_is_no_value_also_where_it_could_be_one() -> None:
    line = Oversized(b"1")
    line.dropped = 10**7
    forms: list[Format] = [JsonLines(), TextLines(), Csv()]
    for form in forms:
        parsed = form.parser().parse([b"2", line, b"3"], row=0, limit=10, final=True)
        assert [reject.row for reject in parsed.rejects] == [1]
        assert [*parsed.rows] == [0, 2]


class Renamed(msgspec.Struct, rename="camel"):
    user_name: str
    hit_count: int


def test_fields_of_a_type_come_by_the_names_of_the_header_and_not_by_their_places() -> None:
    lines = [b"hitCount,userName", b"3,ann"]
    assert Csv(Renamed, header=True).parser().parse(lines, 0, 10, True).values == [Renamed("ann", 3)]
    given = Csv(Renamed, columns=["hitCount", "userName"])
    assert given.parser().parse(lines[1:], 0, 10, True).values == [Renamed("ann", 3)]
    assert Csv(Renamed).parser().parse([b"ann,3"], 0, 10, True).values == [Renamed("ann", 3)]
