"""Lines of the log become requests, or a reason."""

import pytest

from examples.zeitgeist.logline import LoggedRequest, Malformed, is_page_view, parse_line

LINE = '199.example - - [01/Jul/1995:00:00:01 -0400] "GET /history/apollo/ HTTP/1.0" 200 6245'


def request(line: str) -> LoggedRequest:
    parsed = parse_line(line)
    assert isinstance(parsed, LoggedRequest)
    return parsed


def with_request(words: str, status: int = 200, size: str = "10") -> str:
    return f'h - - [01/Jul/1995:00:00:01 -0400] "{words}" {status} {size}'


def test_a_line_of_the_log() -> None:
    assert parse_line(LINE) == LoggedRequest(
        timestamp_us=804_571_201_000_000,
        offset_s=-14400,
        host="199.example",
        method="GET",
        path="/history/apollo/",
        status=200,
        size=6245,
    )


def test_offsets_are_taken_off() -> None:
    east = LINE.replace("-0400", "+0530")
    assert request(LINE).timestamp_us - request(east).timestamp_us == (4 * 60 + 5 * 60 + 30) * 60_000_000


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("GET /a HTTP/1.0", "/a"),
        ("GET /a", "/a"),
        ("GET  /a  HTTP/1.0", "/a"),
        ("GET /cgi-bin/imagemap/countdown?99,176 HTTP/1.0", "/cgi-bin/imagemap/countdown"),
        ("GET /a#top HTTP/1.0", "/a"),
        ("GET /a#b?c HTTP/1.0", "/a"),
        ("GET /A//b/%7Ec/ HTTP/1.0", "/A//b/%7Ec/"),
        ('GET /a"b HTTP/1.0', '/a"b'),
        ("GET /a b c HTTP/1.0", "/a"),
    ],
)
def test_paths(words: str, path: str) -> None:
    assert request(with_request(words)).path == path


def test_a_missing_size_is_nothing() -> None:
    assert request(with_request("GET /a HTTP/1.0", 304, "-")).size == 0


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        LINE + " more",
        LINE.replace("GET ", "get "),
        LINE.replace("/history/apollo/ HTTP/1.0", ""),
        LINE.replace("GET", "k\x83û\x03tx"),
        LINE.replace(" 200 ", " 20 "),
        LINE.replace("HTTP", "\nHTTP"),
        LINE.replace("1995", "１９９５"),
    ],
)
def test_other_lines_are_refused(line: str) -> None:
    assert parse_line(line) == Malformed("not in Common Log Format")


@pytest.mark.parametrize("date", ["31/Jun/1995:00", "01/Juli/1995:00", "01/Xyz/1995:00", "01/Jul/1995:24"])
def test_dates_that_do_not_exist_are_refused(date: str) -> None:
    assert isinstance(parse_line(LINE.replace("01/Jul/1995:00", date, 1)), Malformed)


@pytest.mark.parametrize(
    ("words", "status", "counts"),
    [
        ("GET /a HTTP/1.0", 200, True),
        ("GET /a HTTP/1.0", 304, True),
        ("GET /a HTTP/1.0", 404, False),
        ("HEAD /a HTTP/1.0", 200, False),
    ],
)
def test_what_counts_for_a_page(words: str, status: int, counts: bool) -> None:
    assert is_page_view(request(with_request(words, status))) is counts
