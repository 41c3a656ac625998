"""Runs Zeitgeist's model over a log offline: the oracle of the pipeline's output, and a test of its quality.

`python -m examples.zeitgeist.evaluate LOG [--report OUT.html] [--trials N]` prints the anomalies per day and
how many of N seeded disturbances are found: at a random minute, the traffic of a key is multiplied by five
or dropped to nothing for fifteen minutes. A disturbance is found if an episode of its kind overlaps it and
was raised by the end of the window after it. Trials are drawn from the hours from the sixth on, for the site
and for pages whose forecast for those fifteen minutes is at least `ENOUGH` requests, except while traffic
already was anomalous: when the key has an episode within half an hour, or the site less than half its forecast.
"""

import argparse
import gzip
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from examples.zeitgeist import detector, model
from examples.zeitgeist.detector import Anomaly, Episode, KeyState, Kind, Scope
from examples.zeitgeist.logline import Malformed, Request, is_page_view, parse_line
from examples.zeitgeist.model import WINDOW_US

Key = tuple[Scope, str]
Point = tuple[int, int, float]
"""Start of a window (microseconds UTC), its count and its forecast."""

Counts = dict[int, int]
"""Requests by start of window or minute (microseconds UTC)."""

SITE: Final[Key] = ("site", "")
MINUTE_US: Final = 60_000_000
TRIAL_US: Final = 15 * MINUTE_US

ENOUGH: Final = 30.0
"""Requests expected in fifteen minutes from which a page's disturbances must be found."""

SEED: Final = 1995


class Trial(msgspec.Struct, frozen=True):
    """A disturbance of one key's traffic for fifteen minutes from `at_us`."""

    key: Key
    at_us: int
    kind: Kind


def read_log(path: Path) -> Iterator[Request | Malformed]:
    """The lines of a log, gzipped if its name says so."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="latin-1", newline="\n") as lines:
        for line in lines:
            yield parse_line(line.rstrip("\r\n"))


def count_minutes(rows: Iterable[Request]) -> dict[Key, Counts]:
    """Requests per key and minute: what is left of a log, whatever the order of its lines."""
    counts: dict[Key, Counts] = defaultdict(Counter)
    for row in rows:
        minute_us = row.timestamp_us // MINUTE_US * MINUTE_US
        counts[SITE][minute_us] += 1
        if is_page_view(row):
            counts["page", row.path][minute_us] += 1
    return dict(counts)


def windows_of(minutes: Counts) -> Counts:
    """Requests per window."""
    windows: Counts = Counter()
    for minute_us, count in minutes.items():
        windows[minute_us // WINDOW_US * WINDOW_US] += count
    return windows


def end_of(minutes: Mapping[Key, Counts]) -> int:
    """End of the last window with a request of any key; 0 if there is none."""
    last = max(minutes.get(SITE, {}), default=None)
    return 0 if last is None else last // WINDOW_US * WINDOW_US + WINDOW_US


def episodes_of(windows: Counts, end_us: int) -> list[Episode]:
    """The episodes of one key in an input that ends at `end_us`."""
    state: KeyState | None = None
    found: list[Episode] = []
    for start_us in sorted(windows):
        step = detector.advance(state, start_us, windows[start_us])
        state, found = step.state, [*found, *step.anomalies]
    return [*found, *detector.finish(state, end_us)]


def series_of(windows: Counts, end_us: int) -> list[Point]:
    """Every window of one key from its first to the end of the input, with count and forecast."""
    return [(step_us, count, mean) for step_us, count, mean, _ in _walk(windows, end_us)]


def expected_anomalies(rows: Iterable[Request], offset_s: int = 0) -> list[Anomaly]:
    """The rows that Zeitgeist must output for an input, in the order of its output file."""
    return anomalies_of(count_minutes(rows), offset_s)


def anomalies_of(minutes: Mapping[Key, Counts], offset_s: int) -> list[Anomaly]:
    """The anomalies of all keys, times in the zone `offset_s` seconds east of UTC."""
    return _named(_episodes_by_key(minutes), offset_s)


def alarms_per_day(anomalies: Iterable[Anomaly]) -> dict[str, Counter[str]]:
    """Anomalies by local day of their start, then by scope and kind, as in `"site spike"`."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for row in anomalies:
        table[row.start[:10]][f"{row.scope} {row.kind}"] += 1
    return dict(sorted(table.items()))


def draw_trials(minutes: Mapping[Key, Counts], scope: Scope, count: int, seed: int = SEED) -> list[Trial]:
    """`count` seeded disturbances of the site or of pages with enough traffic, half of each kind.

    Minutes are drawn evenly over the log, then a page evenly among those with enough traffic at the time.
    """
    end_us = end_of(minutes)
    site = _trial_windows(minutes[SITE], end_us, 0.0)
    healthy = {start_us for start_us, (had, due) in site.items() if had >= due / 2}
    keys = [SITE] if scope == "site" else sorted(key for key in minutes if key != SITE)
    floor = 0.0 if scope == "site" else ENOUGH
    eligible: dict[int, list[Key]] = defaultdict(list)
    for key in keys:
        for start_us in _trial_windows(minutes[key], end_us, floor):
            if start_us in healthy:
                eligible[start_us].append(key)
    return _draw(eligible, min(minutes[SITE]), end_us, count, random.Random(f"{seed} {scope}"))


def is_found(minutes: Counts, trial: Trial) -> bool:
    """Whether a disturbance of a key's traffic is detected."""
    until_us = trial.at_us + TRIAL_US
    end_us = (until_us // WINDOW_US + 2) * WINDOW_US
    windows = windows_of({at: n for at, n in disturb(minutes, trial).items() if at < end_us})
    return any(
        episode.kind == trial.kind and episode.start_us < until_us and episode.end_us > trial.at_us
        for episode in episodes_of(windows, end_us)
    )


def disturb(minutes: Counts, trial: Trial) -> Counts:
    """A key's traffic with a disturbance in it."""
    factor = 5 if trial.kind == "spike" else 0
    return {
        at: n * factor if trial.at_us <= at < trial.at_us + TRIAL_US else n
        for at, n in minutes.items()
        if factor or not trial.at_us <= at < trial.at_us + TRIAL_US
    }


def _walk(windows: Counts, end_us: int) -> Iterator[tuple[int, int, float, bool]]:
    """Steps a key through every window: start, count, forecast, and whether it is past its warm-up."""
    state: KeyState | None = None
    for start_us in range(min(windows), end_us, WINDOW_US):
        warm = state is not None and model.age(state.traffic) >= detector.WARM_UP
        step = detector.advance(state, start_us, windows.get(start_us, 0))
        yield start_us, windows.get(start_us, 0), step.expected, warm
        state = step.state


def _episodes_by_key(minutes: Mapping[Key, Counts]) -> dict[Key, list[Episode]]:
    end_us = end_of(minutes)
    return {key: episodes_of(windows_of(counts), end_us) for key, counts in minutes.items()}


def _named(episodes: Mapping[Key, Sequence[Episode]], offset_s: int) -> list[Anomaly]:
    return detector.sort_anomalies(
        detector.name_anomaly(*key, episode, offset_s) for key, found in episodes.items() for episode in found
    )


def _trial_windows(minutes: Counts, end_us: int, floor: float) -> dict[int, tuple[int, float]]:
    """Windows where a trial of a key may begin, with requests had and expected in fifteen minutes."""
    if sum(minutes.values()) < floor:
        return {}
    windows = windows_of(minutes)
    points = list(_walk(windows, end_us))
    busy = _anomalous(episodes_of(windows, end_us))
    spans = zip(points, points[1:], points[2:], strict=False)
    sums = ((a[0], a[1] + b[1] + c[1], a[2] + b[2] + c[2], a[3]) for a, b, c in spans)
    return {at: (had, due) for at, had, due, warm in sums if warm and due >= floor and at not in busy}


def _anomalous(episodes: Iterable[Episode]) -> set[int]:
    """Windows within half an hour of an episode."""
    margin_us = 30 * MINUTE_US
    return {
        at
        for episode in episodes
        for at in range(episode.start_us - margin_us, episode.end_us + margin_us, WINDOW_US)
    }


def _draw(
    eligible: Mapping[int, list[Key]], start_us: int, end_us: int, count: int, dice: random.Random
) -> list[Trial]:
    """Draws trials until there are enough; none at all if no window is eligible."""
    trials: list[Trial] = []
    kinds: tuple[Kind, Kind] = ("spike", "dip")
    while eligible and len(trials) < count:
        at_us = dice.randrange(start_us, end_us, MINUTE_US)
        keys = eligible.get(at_us // WINDOW_US * WINDOW_US, [])
        if keys:
            trials.append(Trial(dice.choice(keys), at_us, kinds[len(trials) % 2]))
    return trials
