"""Writes Zeitgeist's findings as one HTML file that tells what happened, with nothing to fetch.

It begins with words and one picture of the whole period.  Then come the anomalies with a picture each: of the site, then of
pages.  What was more than expected comes before what was less, and the strongest first. `templates/report.html.j2` has the
page, `pictures` draws. Each key's windows are walked once, and only of keys with a picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from examples.zeitgeist import pictures
from examples.zeitgeist.detector import Anomaly, Scope, iso_time
from examples.zeitgeist.evidence import Kind
from examples.zeitgeist.pictures import Point

Series = Callable[[Scope, str], Sequence[Point]]
"""Every window of a key, in order; may be empty."""

PICTURED_PAGES: Final = 12
"""Page anomalies of each kind with a picture; the rest are listed only, to keep the file readable."""

KINDS: Final[tuple[tuple[Scope, Kind], ...]] = (("site", "spike"), ("site", "dip"), ("page", "spike"), ("page", "dip"))


class Stat(msgspec.Struct, frozen=True):
    """One figure for the head of the report, such as `Stat("requests", "391,249")`."""

    name: str
    value: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the report is about."""

    title: str
    log: str
    first_us: int
    """Time of the first request, and the end of the input."""
    end_us: int
    offset_s: int = 0
    """The log's zone, seconds east of UTC."""
    stats: Sequence[Stat] = ()


class Card(msgspec.Struct, frozen=True):
    """An anomaly as the page shows it."""

    row: Anomaly
    name: str
    span: str
    picture: str = ""


def write_report(path: Path, facts: Facts, anomalies: Sequence[Anomaly], series: Series) -> None:
    """Writes the report to `path`. `anomalies` are in the order of the output file."""
    path.write_text(render(facts, anomalies, series), encoding="utf-8")


def series_from(points: Mapping[tuple[Scope, str], Sequence[Point]]) -> Series:
    """`series` from a mapping; keys it lacks have no windows."""
    return lambda scope, key: points.get((scope, key), ())


def render(facts: Facts, anomalies: Sequence[Anomaly], series: Series) -> str:
    """The report's HTML."""
    walked = cache(series)
    strongest = sorted(anomalies, key=lambda row: (-row.score, row.start, row.key))
    groups, listed = [], []
    for scope, kind in KINDS:
        rows = [row for row in strongest if (row.scope, row.kind) == (scope, kind)]
        shown = rows if scope == "site" else rows[:PICTURED_PAGES]
        groups.append((scope, kind, [_card(row, walked) for row in shown], len(rows)))
        listed += [_card(row) for row in rows[len(shown) :]]
    zone = datetime.fromisoformat(iso_time(facts.first_us, facts.offset_s)).tzinfo
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html.j2").render(
        facts=facts,
        period=_period(facts),
        summary=_summary(facts, strongest),
        overview=pictures.of_period(anomalies, walked("site", ""), zone),
        narrow=pictures.of_period(anomalies, walked("site", ""), zone, narrow=True),
        days=_days(facts, anomalies),
        groups=groups,
        listed=listed,
    )


def _card(row: Anomaly, series: Series | None = None) -> Card:
    picture = "" if series is None else pictures.of_anomaly(row, series(row.scope, row.key))
    return Card(row, row.key if row.scope == "page" else "Whole site", _span(row), picture)


def _period(facts: Facts) -> str:
    """From when to when the log is, and in which zone times are."""
    first, end = (datetime.fromisoformat(iso_time(at, facts.offset_s)) for at in (facts.first_us, facts.end_us))
    return f"{_day(first)}, {first:%H:%M} to {_day(end)}, {end:%H:%M} ({first.tzname()})"


def _summary(facts: Facts, strongest: Sequence[Anomaly]) -> list[str]:
    """The story in a few sentences."""
    if not strongest:
        return ["Nothing was out of the ordinary."]
    had = Counter((row.scope, row.kind) for row in strongest)
    counts = [_number(had[scope, kind], kind) for scope, kind in KINDS]
    said = ["The whole site had {} and {}; single pages had {} and {}.".format(*counts)]
    spike = next((row for row in strongest if (row.scope, row.kind) == ("site", "spike")), None)
    if spike is not None:
        pages = {row.key for row in strongest if row.scope == "page" and row.kind == "spike" and _meet(row, spike)}
        said.append(
            f"The strongest spike of the site was {_span(spike)}: {spike.observed:,} requests, where {spike.expected:,.0f} "
            f"were expected, while {_number(len(pages), 'page')} had a spike of their own."
        )
    dip = max((r for r in strongest if (r.scope, r.kind) == ("site", "dip")), key=_length, default=None)
    if dip is not None:
        said.append(
            f"Its longest dip was {_span(dip)}: {dip.observed:,} requests, where {dip.expected:,.0f} were expected."
        )
    still = sum(row.open for row in strongest)
    if still:
        said.append(f"When the log ended, {_number(still, 'anomaly', 'anomalies')} still went on.")
    quiet = [day for day, counts in _days(facts, strongest) if not any(counts)]
    said.append(f"Days without any alarm: {', '.join(quiet) or 'none'}.")
    return said


def _days(facts: Facts, rows: Sequence[Anomaly]) -> list[tuple[str, list[int]]]:
    """Every local day of the log with its alarms by the day of their start, as `KINDS`."""
    first, last = (date.fromisoformat(iso_time(at, facts.offset_s)[:10]) for at in (facts.first_us, facts.end_us - 1))
    had = Counter((row.start[:10], row.scope, row.kind) for row in rows)
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    return [(f"{day:%a} {_day(day)}", [had[(day.isoformat(), scope, kind)] for scope, kind in KINDS]) for day in days]


def _meet(row: Anomaly, other: Anomaly) -> bool:
    return row.start < other.end and other.start < row.end


def _length(row: Anomaly) -> timedelta:
    return datetime.fromisoformat(row.end) - datetime.fromisoformat(row.start)


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}" if count else f"no {one}"


def _day(day: date) -> str:
    return f"{day.day} {day:%b %Y}"


def _span(row: Anomaly) -> str:
    """When an anomaly was, as a reader would say it."""
    start, end = datetime.fromisoformat(row.start), datetime.fromisoformat(row.end)
    clock = "%H:%M:%S" if start.second or end.second else "%H:%M"
    last = f"{end:{clock}}" if start.date() == end.date() else f"{end.day} {end:%b} {end:{clock}}"
    return f"{start:%a} {start.day} {start:%b} {start:{clock}} to {last} ({_duration(end - start)})"


def _duration(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    if seconds < 300:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
