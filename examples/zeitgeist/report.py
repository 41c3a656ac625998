"""Writes Zeitgeist's findings as one HTML file, with a picture of each anomaly and nothing to fetch.

A picture shows the requests of each window as bars and the forecast as a line, for the episode (shaded) and
some hours around it. Colours follow the reader's light or dark setting. Times are shown in the offset that
the anomalies carry.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from examples.zeitgeist.detector import Anomaly, Scope
from examples.zeitgeist.model import HOUR_US, WINDOW_US

Point = tuple[int, int, float]
"""Start of a window (microseconds UTC), requests had, requests expected."""

Series = Callable[[Scope, str], Sequence[Point]]
"""Every window of a key, in order; may be empty."""

WIDTH: Final = 720
HEIGHT: Final = 170
LEFT: Final = 46
BOTTOM: Final = 22
TOP: Final = 8

MARGIN_US: Final = 3 * HOUR_US
"""Time shown before and after an episode, at least; a third of its length if that is more."""

MAX_BARS: Final = 180
"""Most bars in a picture: longer stretches show means of several windows."""

LARGEST_PAGES: Final = 200
"""Page anomalies with a picture; the rest are listed only, to keep the file readable."""


class Stat(msgspec.Struct, frozen=True):
    """One figure for the head of the report, such as `Stat("requests", "391,249")`."""

    name: str
    value: str


class Frame(msgspec.Struct, frozen=True):
    """Scales of one picture."""

    start_us: int
    end_us: int
    top: float
    """Requests per window at the upper edge."""

    def x(self, time_us: int) -> float:
        """Horizontal place of a time, in pixels."""
        return LEFT + (time_us - self.start_us) / (self.end_us - self.start_us) * (WIDTH - LEFT)

    def y(self, count: float) -> float:
        """Vertical place of a count, in pixels."""
        return HEIGHT - BOTTOM - count / self.top * (HEIGHT - BOTTOM - TOP)


def write_report(
    path: Path, anomalies: Sequence[Anomaly], series: Series, title: str, stats: Sequence[Stat] = ()
) -> None:
    """Writes the report to `path`. `anomalies` are in the order of the output file."""
    path.write_text(render(anomalies, series, title, stats), encoding="utf-8")


def series_from(points: Mapping[tuple[Scope, str], Sequence[Point]]) -> Series:
    """`series` from a mapping; keys it lacks have no windows."""
    return lambda scope, key: points.get((scope, key), ())


def render(anomalies: Sequence[Anomaly], series: Series, title: str, stats: Sequence[Stat] = ()) -> str:
    """The report's HTML."""
    site = [row for row in anomalies if row.scope == "site"]
    pages = sorted((row for row in anomalies if row.scope == "page"), key=lambda row: -row.score)
    shown, listed = pages[:LARGEST_PAGES], pages[LARGEST_PAGES:]
    body = [
        f"<header><h1>{escape(title)}</h1>{_stats(stats)}</header>",
        "<section><h2>Alarms per day</h2>",
        _day_table(anomalies),
        "</section>",
        _section("The whole site", site, series),
        _section("Pages, strongest first", shown, series),
        _listing(listed),
    ]
    return _page(escape(title), "\n".join(body))


def picture(row: Anomaly, points: Sequence[Point]) -> str:
    """An SVG picture of an anomaly; empty if none of `points` lies around it."""
    start, end = datetime.fromisoformat(row.start), datetime.fromisoformat(row.end)
    start_us, end_us = _micros(start), _micros(end)
    near = _around(points, start_us, end_us)
    if not near:
        return ""
    bars = _thin(near)
    length_us = bars[1][0] - bars[0][0] if len(bars) > 1 else WINDOW_US
    top = max(max(max(count, due) for _, count, due in bars) * 1.05, 1.0)
    frame = Frame(near[0][0], max(near[-1][0] + WINDOW_US, bars[-1][0] + length_us), top)
    parts = [
        _shade(frame, start_us, end_us, row.kind),
        _grid(frame, start.tzinfo),
        _bars(frame, bars, length_us),
        _line(frame, bars, length_us),
    ]
    label = escape(f"{row.kind} of {row.key or 'the site'}: requests against forecast", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _around(points: Sequence[Point], start_us: int, end_us: int) -> Sequence[Point]:
    margin_us = max(MARGIN_US, (end_us - start_us) // 3)
    first = bisect_left(points, (start_us - margin_us, -1, 0.0))
    return points[first : bisect_left(points, (end_us + margin_us, -1, 0.0))]


def _thin(points: Sequence[Point]) -> list[tuple[int, float, float]]:
    """At most `MAX_BARS` points, each the mean of equally many windows."""
    step = -(-len(points) // MAX_BARS)
    groups = [points[at : at + step] for at in range(0, len(points), step)]
    return [
        (group[0][0], sum(p[1] for p in group) / len(group), sum(p[2] for p in group) / len(group)) for group in groups
    ]


def _micros(time: datetime) -> int:
    return int(time.timestamp()) * 1_000_000


def _shade(frame: Frame, start_us: int, end_us: int, kind: str) -> str:
    left, right = frame.x(max(start_us, frame.start_us)), frame.x(min(end_us, frame.end_us))
    return (
        f'<rect class="band {kind}" x="{left:.1f}" y="{TOP}" width="{max(right - left, 2):.1f}" '
        f'height="{HEIGHT - BOTTOM - TOP}"/>'
    )


def _bars(frame: Frame, bars: Sequence[tuple[int, float, float]], length_us: int) -> str:
    """All bars as one path, which keeps a report of hundreds of pictures small."""
    width = frame.x(frame.start_us + length_us) - LEFT - 0.6
    floor = frame.y(0)
    drawn = "".join(
        f"M{frame.x(at):.1f} {floor:.1f}V{frame.y(count):.1f}h{width:.1f}V{floor:.1f}z"
        for at, count, _ in bars
        if count
    )
    return f'<path class="had" d="{drawn}"/>'


def _line(frame: Frame, bars: Sequence[tuple[int, float, float]], length_us: int) -> str:
    places = " ".join(f"{frame.x(at + length_us // 2):.1f},{frame.y(due):.1f}" for at, _, due in bars)
    return f'<polyline class="due" points="{places}"/>'


def _grid(frame: Frame, zone: tzinfo | None) -> str:
    floor = frame.y(0)
    lines = [f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{floor:.1f}" y2="{floor:.1f}"/>']
    for count in _ticks(frame.top):
        y = frame.y(count)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>')
    for time_us in _hours(frame):
        at = datetime.fromtimestamp(time_us // 1_000_000, zone)
        lines.append(f'<text x="{frame.x(time_us):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{_clock(at)}</text>')
    return "".join(lines)


def _clock(at: datetime) -> str:
    """The hour, or the date at midnight."""
    return f"{at:%H:%M}" if at.hour else f"{at.day} {at:%b}"


def _ticks(top: float) -> list[int]:
    """Two to five round counts up to `top`."""
    step = 1
    while top / step > 5:
        step *= 2 if str(step)[0] in "15" else 5
        step = step if str(step)[0] in "125" else step // 2
    return list(range(step, int(top) + 1, step))


def _hours(frame: Frame) -> list[int]:
    """Whole hours to mark, at most about eight of them and not at the very edges."""
    hours = -(-(frame.end_us - frame.start_us) // (8 * HOUR_US))
    step_us = hours * HOUR_US
    first_us = -(-frame.start_us // step_us) * step_us
    return [at for at in range(first_us, frame.end_us, step_us) if LEFT + 14 < frame.x(at) < WIDTH - 16]


def _section(name: str, rows: Sequence[Anomaly], series: Series) -> str:
    if not rows:
        return f"<section><h2>{name}</h2><p>No anomalies.</p></section>"
    cards = "\n".join(_card(row, series(row.scope, row.key)) for row in rows)
    return f'<section><h2>{name}</h2>{LEGEND}<div class="cards">{cards}</div></section>'


def _card(row: Anomaly, points: Sequence[Point]) -> str:
    name = escape(row.key) if row.scope == "page" else "Whole site"
    return (
        f'<article><h3><span class="kind {row.kind}">{row.kind}</span> {name}</h3>'
        f"<p>{_span(row)} &middot; <b>{row.observed:,}</b> requests, {row.expected:,.0f} expected"
        f" &middot; score {row.score:.1f}</p>{picture(row, points)}</article>"
    )


def _span(row: Anomaly) -> str:
    """When an anomaly was, as a reader would say it."""
    start, end = datetime.fromisoformat(row.start), datetime.fromisoformat(row.end)
    last = f"{end:%H:%M}" if start.date() == end.date() else f"{end.day} {end:%b %H:%M}"
    return f"{start:%a} {start.day} {start:%b %H:%M} to {last} ({_length(end - start)})"


def _length(span: timedelta) -> str:
    minutes = int(span.total_seconds()) // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _stats(stats: Sequence[Stat]) -> str:
    cells = "".join(f"<div><dt>{escape(stat.name)}</dt><dd>{escape(stat.value)}</dd></div>" for stat in stats)
    return f"<dl>{cells}</dl>" if cells else ""


def _day_table(anomalies: Sequence[Anomaly]) -> str:
    kinds = [("site", "spike"), ("site", "dip"), ("page", "spike"), ("page", "dip")]
    head = "".join(f"<th>{scope} {kind}s</th>" for scope, kind in kinds)
    rows = []
    for day, found in groupby(sorted(anomalies, key=lambda row: row.start), lambda row: row.start[:10]):
        had = [(str(row.scope), str(row.kind)) for row in found]
        cells = "".join(f"<td>{had.count((s, k)) or '&middot;'}</td>" for s, k in kinds)
        rows.append(f"<tr><th>{day}</th>{cells}</tr>")
    return f'<div class="wide"><table><tr><th>day</th>{head}</tr>{"".join(rows)}</table></div>'


def _listing(rows: Sequence[Anomaly]) -> str:
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td>{escape(row.key)}</td><td>{row.kind}</td><td>{_span(row)}</td><td>{row.observed:,}</td>"
        f"<td>{row.expected:,.0f}</td><td>{row.score:.1f}</td></tr>"
        for row in rows
    )
    head = "<tr><th>page</th><th>kind</th><th>when</th><th>requests</th><th>expected</th><th>score</th></tr>"
    return f'<section><h2>More pages</h2><div class="wide"><table>{head}{cells}</table></div></section>'


LEGEND: Final = (
    '<p class="legend"><i class="had"></i> requests per window <i class="due"></i> forecast '
    '<i class="band spike"></i> spike <i class="band dip"></i> dip</p>'
)

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2330; --dim: #667085; --paper: #f6f7f9; --card: #fff;
  --line: #e2e5ea; --had: #7f9cc4; --due: #1d2330; --spike: #d9480f; --dip: #1864ab; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #98a2b3; --paper: #14171c;
  --card: #1c2027; --line: #323843; --had: #54719c; --due: #f2f4f7; --spike: #ff8a4c; --dip: #66b2ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 1560px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 1rem; font-size: 1.9rem; letter-spacing: -.02em; }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.25rem; }
h3 { margin: 0; font-size: 1rem; overflow-wrap: anywhere; }
dl { display: flex; flex-wrap: wrap; gap: .75rem 2.25rem; margin: 0; }
dt { color: var(--dim); font-size: .8rem; } dd { margin: 0; font-size: 1.25rem; font-weight: 600; }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1rem; }
article p { margin: .15rem 0 .5rem; color: var(--dim); font-size: .875rem; } article b { color: var(--ink); }
.kind { font-size: .75rem; font-weight: 700; text-transform: uppercase; letter-spacing: .04em; }
.kind.spike { color: var(--spike); } .kind.dip { color: var(--dip); }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--dim); font-size: 11px; }
svg .had { fill: var(--had); } svg .due { fill: none; stroke: var(--due); stroke-width: 1.6; }
svg .band.spike { fill: var(--spike); fill-opacity: .16; }
svg .band.dip { fill: var(--dip); fill-opacity: .16; }
svg .axis { stroke: var(--dim); } svg .grid { stroke: var(--line); }
.legend { color: var(--dim); font-size: .85rem; }
.legend i { display: inline-block; width: 1.1em; height: .75em; margin: 0 .2em 0 .9em; }
i.had { background: var(--had); } i.due { height: 2px !important; background: var(--due);
  vertical-align: middle; }
i.band.spike { background: var(--spike); opacity: .3; } i.band.dip { background: var(--dip); opacity: .3; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; }
th { font-weight: 600; } tr:first-child th { color: var(--dim); font-size: .8rem; }
"""


def _page(title: str, body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )
