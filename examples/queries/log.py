"""Reads the query log: user, time (yymmddHHMMSS) and query, separated by tabs."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from examples.zeitgeist.logfile import gzip_fault
from examples.zeitgeist.pipeline import Request
from millwheel.errors import SourceError


def read_queries(path: Path) -> Iterator[tuple[Request, int]]:
    """(request, event time us) of every query that has a text; a malformed line is named on standard error."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="latin-1", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                parsed = parse_query(line)
                if parsed is None:
                    print(
                        f"queries: {path.name}:{number}: not user, yymmddHHMMSS, query: {line!r:.80}", file=sys.stderr
                    )
                else:
                    yield parsed, parsed.time_us
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path} {gzip_fault(path) or f'cannot be read: {error}'}") from error


def parse_query(line: str) -> Request | None:
    """The query of a line as a request for itself, or None for a malformed line.

    >>> parse_query("u1\\t970916105432\\tYahoo  Chat\\n").page
    'yahoo chat'
    """
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 3 or len(fields[1]) != 12:
        return None
    try:
        time = datetime.strptime(fields[1], "%y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return Request(int(time.timestamp()) * 1_000_000, " ".join(fields[2].lower().split()) or None)
