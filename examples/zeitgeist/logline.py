"""Parses one line of a web server's log in Common Log Format, and says which keys it counts for.

Another program that is to agree with this one needs only this:

* The line, without its line ending and decoded as Latin-1, must match `PATTERN` from end to end and carry a
  date that exists. The pattern uses nothing that Java's regular expressions lack or read differently.
* The path is the request's second word up to the first `?` or `#`. Case, `%` escapes, `//` and a final `/` are kept, because
  what looks like two pages to the server's users may be two pages.
* Every line that parses counts for the site. It counts for a page if it is a `GET` answered with a status below 400.
  Pictures, redirects and answers from a cache (304) are traffic.  Names that do not exist are not.
"""

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

PATTERN: Final = re.compile(
    r"([^ ]+) [^ ]+ [^ ]+ "
    r"\[([0-9]{2})/([A-Z][a-z]{2})/([0-9]{4}):([0-9]{2}):([0-9]{2}):([0-9]{2}) ([+-])([0-9]{2})([0-9]{2})\] "
    r'"([A-Z]+) +([^ ?#]+)(?:[?# ].*)?" ([0-9]{3}) ([0-9]+|-)'
)

MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class LoggedRequest(msgspec.Struct, frozen=True):
    """One request."""

    timestamp_us: int
    """Microseconds UTC since 1970."""
    offset_s: int
    """Seconds that the log's clock was east of UTC."""
    host: str
    method: str
    path: str
    status: int
    size: int
    """Bytes of the answer; 0 where the log has `-`."""


class Malformed(msgspec.Struct, frozen=True):
    """A line that is no request."""

    reason: str


def parse_line(line: str) -> LoggedRequest | Malformed:
    """The request that a line (without its line ending) records, or why there is none."""
    match = PATTERN.fullmatch(line)
    if match is None:
        return Malformed("not in Common Log Format")
    host, *stamp, method, path, status, size = match.groups()
    offset_s = _offset_s(*stamp[6:])
    timestamp_us = _timestamp_us(stamp[:6], offset_s)
    if timestamp_us is None:
        return Malformed("no such date")
    return LoggedRequest(timestamp_us, offset_s, host, method, path, int(status), 0 if size == "-" else int(size))


def is_page_view(request: LoggedRequest) -> bool:
    """Whether a request counts for its page."""
    return request.method == "GET" and request.status < 400


def _offset_s(sign: str, hours: str, minutes: str) -> int:
    seconds = int(hours) * 3600 + int(minutes) * 60
    return -seconds if sign == "-" else seconds


def _timestamp_us(stamp: list[str], offset_s: int) -> int | None:
    """Microseconds UTC of day, month, year, hour, minute and second; None if there is no such date."""
    day, month, year, hour, minute, second = stamp
    if month not in MONTHS:
        return None
    try:
        local = datetime(int(year), MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return None
    return (int(local.timestamp()) - offset_s) * 1_000_000
