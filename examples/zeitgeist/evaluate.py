"""Runs Zeitgeist's model over a log offline: the oracle of the pipeline's output, and a test of its quality.

`python -m examples.zeitgeist.evaluate LOG [--report OUT.html] [--trials N]` prints the anomalies per day, and how many of N
seeded disturbances per scope are found.  A disturbance multiplies a key's traffic by five, or drops it to nothing, for
fifteen minutes from a random minute on. It is found if an episode of its kind overlaps it and was raised by the end of the
window after it. Keys are the site, and pages of which the forecast for those fifteen minutes is at least `ENOUGH` requests.
Any time counts for which the key is past its warm-up, except where traffic was anomalous already.  It was if the key has an
episode within half an hour, or the site had less than half its forecast.

It also prints how many of the site's dips the log itself does not bear out (`founded`).
"""

import argparse
import gzip
import random
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from examples.zeitgeist import detector, model, observed
from examples.zeitgeist.detector import Anomaly, Episode, KeyState, Scope
from examples.zeitgeist.evidence import Kind
from examples.zeitgeist.founded import unfounded_dips
from examples.zeitgeist.logline import LoggedRequest, Malformed, is_page_view, parse_line
from examples.zeitgeist.model import DAY_US, WINDOW_US
from examples.zeitgeist.pictures import Point
from examples.zeitgeist.report import Facts, Series, Stat, write_report
from examples.zeitgeist.silence import SLOT_US, SLOTS

Key = tuple[Scope, str]

Counts = dict[int, int]
"""Requests by start of window or slot (microseconds UTC)."""

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


def read_log(path: Path) -> Iterator[LoggedRequest | Malformed]:
    """The lines of a log, gzipped if its name says so."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="latin-1", newline="\n") as lines:
        for line in lines:
            yield parse_line(line.rstrip("\r\n"))


def count_slots(rows: Iterable[LoggedRequest]) -> dict[Key, Counts]:
    """Requests per key and slot: what is left of a log, whatever the order of its lines."""
    counts: dict[Key, Counts] = defaultdict(Counter)
    for row in rows:
        slot_us = row.timestamp_us // SLOT_US * SLOT_US
        counts[SITE][slot_us] += 1
        if is_page_view(row):
            counts["page", row.path][slot_us] += 1
    return dict(counts)


def windows_of(slots: Counts) -> Counts:
    """Requests per window."""
    windows: Counts = Counter()
    for slot_us, count in slots.items():
        windows[slot_us // WINDOW_US * WINDOW_US] += count
    return windows


def end_of(slots: Mapping[Key, Counts]) -> int:
    """End of the input: of the last slot with a request of any key; 0 if there is none."""
    last = max(slots.get(SITE, {}), default=None)
    return 0 if last is None else observed.input_end(last)


def episodes_of(slots: Counts, end_us: int, scope: Scope) -> list[Episode]:
    """The episodes of one key in an input that ends at `end_us`."""
    state: KeyState | None = None
    rhythm = model.UNKNOWN
    found: list[Episode] = []
    windows = windows_of(slots)
    for start_us in sorted(windows):
        cut = _cut(slots, start_us) if scope == "site" else ()
        step = detector.advance(state, rhythm, start_us, windows[start_us], cut, end_us)
        state, rhythm = step.state, step.rhythm
        found += step.anomalies
    return [*found, *detector.finish(state, rhythm, end_us)]


def _cut(slots: Counts, start_us: int) -> tuple[int, ...]:
    """A window's counts by slot."""
    return tuple(slots.get(start_us + at * SLOT_US, 0) for at in range(SLOTS))


def series_of(windows: Counts, end_us: int) -> list[Point]:
    """Every window of one key from its first to the end of the input, with count and forecast."""
    return [(start_us, count, mean) for start_us, count, mean, _ in _walk(windows, end_us)]


def expected_anomalies(rows: Iterable[LoggedRequest], offset_s: int = 0) -> list[Anomaly]:
    """The rows that Zeitgeist must output for an input, in the order of its output file."""
    return anomalies_of(count_slots(rows), offset_s)


def anomalies_of(slots: Mapping[Key, Counts], offset_s: int) -> list[Anomaly]:
    """The anomalies of all keys, times in the zone `offset_s` seconds east of UTC."""
    return _named(_episodes_by_key(slots), offset_s)


def alarms_per_day(anomalies: Iterable[Anomaly]) -> dict[str, Counter[str]]:
    """Anomalies by local day of their start, then by scope and kind, as in `"site spike"`."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for row in anomalies:
        table[row.start[:10]][f"{row.scope} {row.kind}"] += 1
    return dict(sorted(table.items()))


def draw_trials(slots: Mapping[Key, Counts], scope: Scope, count: int, seed: int = SEED) -> list[Trial]:
    """`count` seeded disturbances of the site or of pages with enough traffic, half of each kind.

    Minutes are drawn evenly over the log, then a page evenly among those with enough traffic at the time.
    """
    end_us = end_of(slots)
    site = _trial_windows(slots[SITE], end_us, 0.0, "site")
    healthy = {start_us for start_us, (had, due) in site.items() if had >= due / 2}
    keys = [SITE] if scope == "site" else sorted(key for key in slots if key != SITE)
    floor = 0.0 if scope == "site" else ENOUGH
    eligible: dict[int, list[Key]] = defaultdict(list)
    for key in keys:
        for start_us in _trial_windows(slots[key], end_us, floor, scope):
            if start_us in healthy:
                eligible[start_us].append(key)
    return _draw(eligible, min(slots[SITE]), end_us, count, random.Random(f"{seed} {scope}"))


def is_found(slots: Counts, trial: Trial) -> bool:
    """Whether a disturbance of a key's traffic is detected."""
    until_us = trial.at_us + TRIAL_US
    end_us = (until_us // WINDOW_US + 2) * WINDOW_US
    disturbed = {at: n for at, n in disturb(slots, trial).items() if at < end_us}
    return any(
        episode.kind == trial.kind and episode.start_us < until_us and episode.end_us > trial.at_us
        for episode in episodes_of(disturbed, end_us, trial.key[0])
    )


def disturb(slots: Counts, trial: Trial) -> Counts:
    """A key's traffic with a disturbance in it."""
    factor = 5 if trial.kind == "spike" else 0
    return {
        at: n * factor if trial.at_us <= at < trial.at_us + TRIAL_US else n
        for at, n in slots.items()
        if factor or not trial.at_us <= at < trial.at_us + TRIAL_US
    }


def _walk(windows: Counts, end_us: int) -> Iterator[tuple[int, int, float, bool]]:
    """Steps a key through every window: start, count, forecast, and whether it is past its warm-up."""
    state: KeyState | None = None
    rhythm = model.UNKNOWN
    for start_us in range(min(windows), end_us, WINDOW_US):
        warm = state is not None and model.age(state.traffic) >= detector.WARM_UP
        count = windows.get(start_us, 0)
        due = float(count) if state is None else model.forecast(state.traffic, rhythm, start_us).mean
        yield start_us, count, due, warm
        step = detector.advance(state, rhythm, start_us, count)
        state, rhythm = step.state, step.rhythm


def _episodes_by_key(slots: Mapping[Key, Counts]) -> dict[Key, list[Episode]]:
    end_us = end_of(slots)
    return {key: episodes_of(counts, end_us, key[0]) for key, counts in slots.items()}


def _named(episodes: Mapping[Key, Sequence[Episode]], offset_s: int) -> list[Anomaly]:
    return detector.sort_anomalies(
        detector.name_anomaly(*key, episode, offset_s) for key, found in episodes.items() for episode in found
    )


def _trial_windows(slots: Counts, end_us: int, floor: float, scope: Scope) -> dict[int, tuple[int, float]]:
    """Windows where a trial of a key may begin, with requests had and expected in fifteen minutes."""
    if sum(slots.values()) < 10 * floor:  # no page with so few requests is ever expected to have `floor`
        return {}
    windows = windows_of(slots)
    points = list(_walk(windows, end_us))
    busy = _anomalous(episodes_of(slots, end_us, scope))
    spans = zip(points, points[1:], points[2:], strict=False)
    sums = ((a[0], a[1] + b[1] + c[1], a[2] + b[2] + c[2], a[3]) for a, b, c in spans)
    return {at: (had, due) for at, had, due, warm in sums if warm and due >= floor and at not in busy}


def _anomalous(episodes: Iterable[Episode]) -> set[int]:
    """Windows within half an hour of an episode."""
    margin_us = 30 * MINUTE_US
    return {
        at
        for episode in episodes
        for at in range((episode.start_us - margin_us) // WINDOW_US * WINDOW_US, episode.end_us + margin_us, WINDOW_US)
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluates the model on a log; see the module's description."""
    options = _options(arguments)
    began_s = time.monotonic()
    lines, times_us = Counter[str](), array("q")
    slots = count_slots(_requests(read_log(options.log), lines, times_us))
    read_s = time.monotonic() - began_s
    anomalies = anomalies_of(slots, options.offset)
    _print_findings(lines, anomalies, read_s, time.monotonic() - began_s - read_s)
    _print_unfounded(anomalies, sorted(times_us))
    if options.report:
        facts = Facts(
            title=options.title, log=options.log.name, first_us=min(slots[SITE]), end_us=end_of(slots),
            offset_s=options.offset, stats=_stats(lines, anomalies),
        )  # fmt: skip
        write_report(options.report, facts, anomalies, _series(slots))
    for scope in ("site", "page") if options.trials else ():
        _print_trials(scope, run_trials(slots, draw_trials(slots, scope, options.trials, options.seed)))


def run_trials(slots: Mapping[Key, Counts], trials: Iterable[Trial]) -> dict[Kind, tuple[int, int]]:
    """Trials found and trials made, by kind."""
    found = Counter((trial.kind, is_found(slots[trial.key], trial)) for trial in trials)
    kinds: tuple[Kind, Kind] = ("spike", "dip")
    return {kind: (found[kind, True], found[kind, True] + found[kind, False]) for kind in kinds}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.zeitgeist.evaluate")
    parser.add_argument("log", type=Path, help="log in Common Log Format; may be gzipped")
    parser.add_argument("--report", type=Path, help="also write an HTML report here")
    parser.add_argument("--title", default="Zeitgeist", help="the report's title")
    parser.add_argument("--trials", type=int, default=200, help="seeded disturbances per scope (default: 200)")
    parser.add_argument("--seed", type=int, default=SEED, help="what the trials are drawn from")
    parser.add_argument("--offset", type=int, default=-14400, help="seconds east of UTC for output times")
    return parser.parse_args(arguments)


def _requests(
    parsed: Iterable[LoggedRequest | Malformed], lines: Counter[str], times_us: "array[int]"
) -> Iterator[LoggedRequest]:
    """The requests among the lines, counting lines and malformed ones and gathering times on the way."""
    for line in parsed:
        lines["lines"] += 1
        if isinstance(line, LoggedRequest):
            times_us.append(line.timestamp_us)
            yield line
        else:
            lines["malformed"] += 1


def _series(slots: Mapping[Key, Counts]) -> Series:
    end_us = end_of(slots)
    return lambda scope, key: series_of(windows_of(slots[scope, key]), end_us)


def _stats(lines: Counter[str], anomalies: Sequence[Anomaly]) -> list[Stat]:
    """Figures for the head of the report."""
    scopes = Counter(row.scope for row in anomalies)
    return [
        Stat("requests", f"{lines['lines'] - lines['malformed']:,}"),
        Stat("malformed lines", f"{lines['malformed']:,}"),
        Stat("site anomalies", f"{scopes['site']:,}"),
        Stat("page anomalies", f"{scopes['page']:,}"),
    ]


def _print_findings(lines: Counter[str], anomalies: Sequence[Anomaly], read_s: float, model_s: float) -> None:
    print(f"{lines['lines']:,} lines, {lines['malformed']} malformed; read in {read_s:.1f} s, ", end="")
    print(f"modelled in {model_s:.1f} s\n")
    for row in anomalies:
        if row.scope == "site":
            print(f"site {row.kind:5} {row.start} {row.end} {row.observed}/{row.expected} score {row.score}")
    columns = ("site spike", "site dip", "page spike", "page dip")
    print("\n| day | " + " | ".join(columns) + " |\n|---" * 1 + "|---:" * len(columns) + "|")
    for day, counts in alarms_per_day(anomalies).items():
        print(f"| {day} | " + " | ".join(str(counts[column]) for column in columns) + " |")


def _print_unfounded(anomalies: Sequence[Anomaly], times_us: Sequence[int]) -> None:
    dips = sum(row.scope == "site" and row.kind == "dip" for row in anomalies)
    days = max((times_us[-1] - times_us[0]) / DAY_US, 1.0) if times_us else 1.0
    false = unfounded_dips(anomalies, times_us)
    print(
        f"\n{dips - len(false)} of {dips} site dips have a silence in the log; false ones a day: {len(false) / days:.2f}"
    )


def _print_trials(scope: Scope, results: Mapping[Kind, tuple[int, int]]) -> None:
    for kind, (found, made) in results.items():
        print(f"{scope} {kind}: {found} of {made} found ({found / max(made, 1):.1%})")


if __name__ == "__main__":
    main()
