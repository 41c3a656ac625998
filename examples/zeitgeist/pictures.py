"""Zeitgeist's pictures, drawn by matplotlib as SVG that stands in an HTML page.

Text stays text and colours are the page's variables, so a picture follows the reader's light or dark setting and its
print. Equal data give equal bytes.
"""

from __future__ import annotations

import io
import re
from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, tzinfo
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from examples.zeitgeist.detector import Anomaly
from examples.zeitgeist.model import DAY_US, HOUR_US, WINDOW_US

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[int, int, float]
"""Start of a window (microseconds UTC), requests had, requests expected."""

MARGIN_US: Final = 3 * HOUR_US
"""Time shown before and after an episode, at least; a third of its length if that is more."""

MAX_BARS: Final = 120
"""Most bars in a picture of an anomaly: longer stretches show means of several windows."""

MAX_BINS: Final = 480
"""Most steps in the overview."""

NARROW_BINS: Final = 160
"""Most steps in the overview of a narrow screen."""

HAD, DUE, SPIKE, DIP, DIM, LINE = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06"
VARIABLES: Final = {
    HAD: "var(--had)", DUE: "var(--due)", SPIKE: "var(--spike)", DIP: "var(--dip)", DIM: "var(--dim)", LINE: "var(--line)",
}  # fmt: skip
"""Colours that no picture has, and what they are in the page."""


def micros(time: str) -> int:
    """An anomaly's time in microseconds UTC."""
    return int(datetime.fromisoformat(time).timestamp()) * 1_000_000


def of_anomaly(row: Anomaly, points: Sequence[Point]) -> str:
    """Requests and forecast around an anomaly; empty if none of `points`, in order, lies there."""
    start_us, end_us = micros(row.start), micros(row.end)
    margin_us = max(MARGIN_US, (end_us - start_us) // 3)
    first = bisect_left(points, (start_us - margin_us, -1, 0.0))
    near = points[first : bisect_left(points, (end_us + margin_us, -1, 0.0))]
    if not near:
        return ""
    zone = datetime.fromisoformat(row.start).tzinfo
    figure, (axes,) = _figure(4.2, 1.75, [(0.105, 0.14, 0.875, 0.8)])
    edges, had, due = _thin(near, MAX_BARS)
    axes.axvspan(start_us, max(end_us, start_us + (edges[-1] - edges[0]) // 200), color=_colour(row), alpha=0.2, lw=0)
    axes.stairs(had, edges, fill=True, color=HAD)
    axes.plot([(a + b) / 2 for a, b in pairwise(edges)], due, color=DUE, lw=1.3)
    _finish(axes, edges[0], edges[-1], max(*had, *due, 1), zone)
    return _svg(figure, f"{row.kind} of {row.key or 'the site'}: requests against forecast")


def of_period(rows: Sequence[Anomaly], points: Sequence[Point], zone: tzinfo | None, narrow: bool = False) -> str:
    """The site's requests over the whole input, its anomalies, and how many pages had one; empty without `points`.

    The `narrow` picture shows the same on a screen of 375 px, with text of a size that can be read there.
    """
    if not points:
        return ""
    if narrow:
        figure, (site, pages) = _figure(4.2, 2.9, [(0.105, 0.36, 0.875, 0.61), (0.105, 0.09, 0.875, 0.2)])
    else:
        figure, (site, pages) = _figure(11.0, 3.0, [(0.05, 0.36, 0.94, 0.6), (0.05, 0.09, 0.94, 0.2)])
    edges, had, _ = _thin(points, NARROW_BINS if narrow else MAX_BINS)
    least_us = (edges[-1] - edges[0]) // 400
    for row in rows:
        if row.scope == "site":
            start_us, end_us = micros(row.start), micros(row.end)
            site.axvspan(start_us, max(end_us, start_us + least_us), color=_colour(row), alpha=0.45, lw=0)
    site.stairs(had, edges, fill=True, color=HAD)
    _finish(site, edges[0], edges[-1], max(*had, 1), None)
    most = _page_bars(pages, rows, edges)
    _finish(pages, edges[0], edges[-1], most, zone, -most)
    return _svg(figure, "Requests to the whole site over the period, with its anomalies, and pages with anomalies")


def _page_bars(axes: Axes, rows: Sequence[Anomaly], edges: Sequence[int]) -> int:
    """Page spikes upwards and page dips downwards, by the time at which they began; returns the most in a bar."""
    step_us = max(HOUR_US, -(-(edges[-1] - edges[0]) // 120))
    most = 1
    for kind, sign, colour in (("spike", 1, SPIKE), ("dip", -1, DIP)):
        bars = [0] * -(-(edges[-1] - edges[0]) // step_us)
        for row in rows:
            at = (micros(row.start) - edges[0]) // step_us
            if row.scope == "page" and row.kind == kind and 0 <= at < len(bars):
                bars[at] += 1
        ends = [edges[0] + at * step_us for at in range(len(bars) + 1)]
        axes.stairs([sign * count for count in bars], ends, fill=True, color=colour)
        most = max(most, *bars)
    axes.axhline(0, color=DIM, lw=0.6)
    return most


def _thin(points: Sequence[Point], most: int) -> tuple[list[int], list[float], list[float]]:
    """At most so many steps of equally many windows: their edges, and the means of what they had and should have had."""
    step = -(-len(points) // most)
    groups = [points[at : at + step] for at in range(0, len(points), step)]
    edges = [group[0][0] for group in groups] + [points[-1][0] + WINDOW_US]
    had = [sum(point[1] for point in group) / len(group) for group in groups]
    due = [sum(point[2] for point in group) / len(group) for group in groups]
    return edges, had, due


def _colour(row: Anomaly) -> str:
    return SPIKE if row.kind == "spike" else DIP


def _figure(
    width: float, height: float, places: Sequence[tuple[float, float, float, float]]
) -> tuple[Figure, list[Axes]]:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "zeitgeist", "font.size": 8})
    figure = Figure(figsize=(width, height), facecolor="none")
    return figure, [figure.add_axes(place) for place in places]


def _finish(axes: Axes, start_us: int, end_us: int, top: float, zone: tzinfo | None, bottom: float = 0) -> None:
    """Limits, grid and labels; of times only where there is a zone."""
    from matplotlib.ticker import MaxNLocator

    axes.set_facecolor("none")
    axes.set_xlim(start_us, end_us)
    axes.set_ylim(bottom * 1.06, top * 1.06)
    ticks = MaxNLocator(4, integer=True).tick_values(bottom, top)
    axes.set_yticks([y for y in ticks if bottom <= y <= top], [f"{abs(int(y)):,}" for y in ticks if bottom <= y <= top])
    times = _ticks(start_us, end_us, zone)
    axes.set_xticks([at for at, _ in times], [text if zone else "" for _, text in times])
    axes.tick_params(length=0, colors=DIM, pad=3)
    axes.grid(axis="y", color=LINE, lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(DIM)


def _ticks(start_us: int, end_us: int, zone: tzinfo | None) -> list[tuple[int, str]]:
    """At most about eight whole hours or days of the zone, and how to write them."""
    shift_us = 0
    if zone is not None:
        offset = datetime.fromtimestamp(start_us // 1_000_000, zone).utcoffset()
        shift_us = 0 if offset is None else int(offset.total_seconds()) * 1_000_000
    steps = [hours * HOUR_US for hours in (1, 2, 3, 6, 12)] + [days * DAY_US for days in (1, 2, 4, 7, 14, 28)]
    step_us = next((step for step in steps if (end_us - start_us) / step <= 8), steps[-1])
    first_us = -(-(start_us + shift_us) // step_us) * step_us - shift_us
    margin_us = (end_us - start_us) // 40
    found = []
    for at in range(first_us, end_us, step_us):
        if start_us + margin_us <= at <= end_us - margin_us:
            time = datetime.fromtimestamp(at // 1_000_000, zone)
            found.append((at, f"{time:%H:%M}" if (at + shift_us) % DAY_US else f"{time.day} {time:%b}"))
    return found


def _svg(figure: Figure, label: str) -> str:
    """The figure as an element of a page: fluid, without names that other pictures have as well."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas: Any = FigureCanvasSVG(figure)
    canvas.print_svg(out, metadata=nothing)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' id="(?!p[0-9a-f]{10}")[a-zA-Z]\w*_\d+"', "", text)
    text = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf'<svg \1 role="img" aria-label="{_attribute(label)}">', text, count=1
    )
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    return re.sub(r"\n\s*", "\n", text).strip()


def _attribute(text: str) -> str:
    from markupsafe import escape

    return str(escape(text)).replace("\\", "\\\\")
