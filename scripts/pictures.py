"""Draw docs/pictures: one SVG per window type and trigger, from what the library gives for a few records.

`python scripts/pictures.py` writes them; a test compares them with what the code draws now.  Time of events goes to the
right, and time passes downwards: a row for each step, and one for each pane that comes out of it.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple
from xml.sax.saxutils import escape

import msgspec

from millwheel import JsonCoder, MsgpackCoder, Pipeline, Stream
from millwheel.library import (
    AtWatermark,
    Calendar,
    EveryRecords,
    EveryWall,
    Fixed,
    Flow,
    Once,
    Pane,
    Repeat,
    Sessions,
    Sliding,
    hours,
    minutes,
    sum_of,
)
from millwheel.library.triggers import Trigger
from millwheel.library.windows import Windows
from millwheel.model import HOUR, MINUTE
from millwheel.testing import Stepper

OUT = Path(__file__).resolve().parent.parent / "docs" / "pictures"

WIDTH, MARGIN, ROW, TOP, LEFT = 640, 12, 24, 54, 150
COLOURS = {"early": "#f2c14e", "on time": "#5fad56", "late": "#d1603d"}
WALL_US = MINUTE // 2
"""Wall time that passes after each step."""

SCORES = Stream("scores", JsonCoder(int))
DROPPED = Stream("dropped", JsonCoder(int))
SUMS = Stream("sums", MsgpackCoder[Pane[int | float]](Pane[int | float]))


class Step(NamedTuple):
    """A record of `value` at `time`, or without a value the watermark going to `time`; us."""

    time: int
    value: int | None = None


def _at(day: int, hour: int) -> int:
    return int(datetime(2026, 3, day, hour, tzinfo=UTC).timestamp()) * 1_000_000


NOON = _at(1, 12)
MINUTES = tuple(
    Step(NOON + round(minute * MINUTE), value)
    for minute, value in [
        (0.5, 5), (2.5, 3), (1.2, 4), (2, None), (3.4, 8), (5.0, 1), (4, None), (1.6, 9), (6.2, 6), (8, None),
    ]
)  # fmt: skip
"""Scores of a few minutes: 4 comes out of order, and 9 is late."""

DAYS = (
    Step(_at(28, 5), 5), Step(_at(28, 20), 3), Step(_at(29, 1), 4), Step(_at(28, 23), None), Step(_at(29, 21), 8),
    Step(_at(29, 23), 1), Step(_at(30, 12), 6), Step(_at(30, 23), None),
)  # fmt: skip
"""Scores of the days around the Sunday of 23 hours."""


class Picture(msgspec.Struct, frozen=True):
    """What is run: the steps, the windows and their triggers; `tick`, us, between two labels of the axis."""

    title: str
    windows: Windows
    trigger: Trigger = AtWatermark()
    lateness: int = 0
    panes: Literal["accumulating", "discarding"] = "accumulating"
    steps: tuple[Step, ...] = MINUTES
    tick: int = MINUTE


_BOTH = AtWatermark(early=EveryRecords(1))
PICTURES = {
    "windows-fixed": Picture("Fixed(minutes=2)", Fixed(minutes=2)),
    "windows-sliding": Picture("Sliding(minutes=4, every=minutes(2))", Sliding(minutes=4, every=minutes(2))),
    "windows-sessions": Picture("Sessions(minutes=1.5)", Sessions(minutes=1.5)),
    "windows-calendar": Picture(
        'Calendar("day", "Europe/Berlin"): the Sunday has 23 hours', Calendar("day", "Europe/Berlin"), steps=DAYS,
        tick=hours(12),
    ),
    "trigger-watermark": Picture("Fixed(minutes=4), AtWatermark(late=None)", Fixed(minutes=4), AtWatermark(late=None)),
    "trigger-early": Picture(
        "Fixed(minutes=4), AtWatermark(early=EveryRecords(2))", Fixed(minutes=4), AtWatermark(early=EveryRecords(2))
    ),
    "trigger-early-wall": Picture(
        "Fixed(minutes=4), AtWatermark(early=EveryWall(minutes=1)), half a minute of wall time a step", Fixed(minutes=4),
        AtWatermark(early=EveryWall(minutes=1)),
    ),
    "trigger-late": Picture(
        "Fixed(minutes=2), AtWatermark(), lateness=minutes(10)", Fixed(minutes=2), lateness=minutes(10)
    ),
    "trigger-repeat": Picture("Fixed(minutes=4), Repeat(EveryRecords(2))", Fixed(minutes=4), Repeat(EveryRecords(2))),
    "trigger-once": Picture("Fixed(minutes=4), Once(EveryRecords(2))", Fixed(minutes=4), Once(EveryRecords(2))),
    "panes-accumulating": Picture(
        'Fixed(minutes=4), early=EveryRecords(1), late, panes="accumulating"', Fixed(minutes=4), _BOTH, minutes(10)
    ),
    "panes-discarding": Picture(
        'Fixed(minutes=4), early=EveryRecords(1), late, panes="discarding"', Fixed(minutes=4), _BOTH, minutes(10),
        "discarding",
    ),
}  # fmt: skip


class Shown(NamedTuple):
    """A step, the panes that came out of it, and whether its record was dropped."""

    step: Step
    panes: list[Pane[Any]]
    dropped: bool


def run(picture: Picture) -> list[Shown]:
    """What the library gives, step by step."""
    pipeline = Pipeline("pictures")
    windowed = (
        Flow(pipeline)
        .read(SCORES)
        .key_by(lambda score: "all")
        .window(picture.windows, picture.trigger, picture.lateness, picture.panes)
    )
    windowed.aggregate(sum_of(int), dropped=DROPPED).to(SUMS)
    stepper = Stepper(pipeline)
    shown, panes, dropped = [], 0, 0
    for step in picture.steps:
        if step.value is None:
            stepper.advance_watermark(step.time)
        else:
            stepper.send(SCORES, step.value, step.time)
        stepper.advance_clock(WALL_US)
        given, lost = stepper.outputs(SUMS), len(stepper.outputs(DROPPED))
        shown.append(Shown(step, [out.value for out in given[panes:]], lost > dropped))
        panes, dropped = len(given), lost
    return shown


def draw(picture: Picture) -> str:
    """The SVG of a picture: the same bytes in every run."""
    shown = run(picture)
    times = [step.time for step in picture.steps] + [edge for one in shown for p in one.panes for edge in p.window]
    low, high = min(times), max(times)

    def x(time: int) -> float:
        return LEFT + (time - low) / (high - low) * (WIDTH - LEFT - MARGIN - 10)

    bottom = TOP + ROW * sum(1 + len(one.panes) for one in shown)
    parts = [_text(MARGIN, 18, picture.title, size=13), *_axis(picture, x, low, high, bottom)]
    y, watermark, line = TOP, low, []
    for one in shown:
        parts += _step(one, x(one.step.time), y + ROW / 2)
        if one.step.value is None:
            line += [(x(watermark), y + ROW / 2), (x(one.step.time), y + ROW / 2)]
            watermark = one.step.time
        for place, pane in enumerate(one.panes, 1):
            parts += _pane(pane, x(pane.start), x(pane.end), y + ROW * place)
        y += ROW * (1 + len(one.panes))
    path = " ".join(f"{across:.1f},{down:.1f}" for across, down in [(x(low), TOP), *line, (x(watermark), bottom)])
    parts.append(f'<polyline points="{path}" fill="none" stroke="#3366aa" stroke-dasharray="5 3"/>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + MARGIN}" font-family="sans-serif">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def _axis(picture: Picture, x: Any, low: int, high: int, bottom: int) -> list[str]:
    """Event time, to the right."""
    parts = []
    for time in range(low + -low % picture.tick, high + 1, picture.tick):
        moment = datetime.fromtimestamp(time / 1_000_000, UTC)
        label = f"{moment:%H:%M}" if picture.tick < HOUR else f"{moment:%d %H}h"
        parts.append(f'<path d="M{x(time):.1f} {TOP - 6}V{bottom}" stroke="#dddddd"/>')
        parts.append(_text(x(time), TOP - 10, label, anchor="middle", size=9))
    return parts


def _step(one: Shown, across: float, middle: float) -> list[str]:
    """A row with a record, or with the watermark's new place."""
    if one.step.value is None:
        return [_text(MARGIN, middle + 4, "watermark moves")]
    fill, word = (
        ("white", f"record {one.step.value}, dropped") if one.dropped else ("#333333", f"record {one.step.value}")
    )
    ink = "#333333" if one.dropped else "white"
    return [
        _text(MARGIN, middle + 4, word),
        f'<circle cx="{across:.1f}" cy="{middle:.1f}" r="9" fill="{fill}" stroke="#333333"/>',
        _text(across, middle + 4, str(one.step.value), anchor="middle", ink=ink),
    ]


def _pane(pane: Pane[Any], left: float, right: float, top: float) -> list[str]:
    """A row with a pane, over its window."""
    box = f'x="{left:.1f}" y="{top + 3:.1f}" width="{right - left:.1f}" height="{ROW - 6}" rx="3"'
    return [
        _text(MARGIN + 14, top + ROW / 2 + 4, f"pane {pane.number}, {pane.timing}"),
        f'<rect {box} fill="{COLOURS[pane.timing]}" fill-opacity="0.8"/>',
        _text((left + right) / 2, top + ROW / 2 + 4, f"{pane.value:g}", anchor="middle"),
    ]


def _text(
    across: float, down: float, words: str, *, anchor: str = "start", size: int = 11, ink: str = "#333333"
) -> str:
    place = f'x="{across:.1f}" y="{down:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{ink}"'
    return f"<text {place}>{escape(words)}</text>"


def report(drawn: dict[str, str]) -> str:
    """An HTML page with the pictures `drawn` by this code, and of each whether docs/pictures has the same."""
    parts = [
        "<!doctype html><meta charset=utf-8><title>Windows and triggers</title>",
        "<style>body{font:15px sans-serif;max-width:60em;margin:2em auto}.no{color:#b00}</style>",
        "<h1>Windows and triggers, as the library gives them now</h1>",
        f"<p>{len(drawn)} pictures, drawn by <code>scripts/pictures.py</code> in this run of the tests.</p>",
    ]
    for name, svg in drawn.items():
        path = OUT / f"{name}.svg"
        same = path.exists() and path.read_text(encoding="utf-8") == svg
        verdict = "as in docs/pictures" if same else '<b class="no">not as in docs/pictures</b>'
        parts.append(f'<h2 id="{name}">{name}</h2><p>{verdict}</p>{svg}')
    return "\n".join(parts) + "\n"


def main() -> int:
    """Write them all."""
    OUT.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        (OUT / f"{name}.svg").write_text(draw(picture), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
