"""Finds spikes and dips in one key's windows: the step that Zeitgeist's window counts are fed to.

A window is judged by its evidence: the logarithm (nats) of how much likelier its count is if traffic had
tripled (spike) or fallen to a tenth (dip) than if it were as forecast. Counts are taken as Poisson and the
evidence divided by the key's spread, the usual quasi-likelihood for counts that come in bunches. Evidence
adds up over windows and is dropped once it falls to nothing (Page's CUSUM test), so that one wild window of
a busy key, or several odd ones of a quiet key, raise the alarm. `ALARM` is a likelihood ratio of a hundred
thousand: with counts as random as assumed, at most one false alarm in as many windows. The alternatives
also say what is worth reporting at all: what stays below 1.8 times or above 0.4 of the forecast is evidence
*against* an anomaly, however many requests there are. That dead zone is also what absorbs a level that is
a bit off, which is why the spread measures only the bunching.

An episode is one run of evidence. It begins with the first window that spoke for it, ends with the last, and
is reported after half an hour with no other. After three hours a change is no news any more: the model
hurries to follow it, and the episode ends once the new level is expected. In a key's first six hours nothing
is known of it and no alarm is raised.

Everything here is a pure function of the key's counts in the order of the windows, so anomalies do not
depend on how records arrived.
"""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Final, Literal

import msgspec

from examples.zeitgeist import model
from examples.zeitgeist.model import HOUR_WINDOWS, WINDOW_US, Forecast, Traffic

Kind = Literal["spike", "dip"]
Scope = Literal["page", "site"]

FACTORS: Final[dict[Kind, tuple[float, float]]] = {
    "spike": (3.0, math.log(3.0)),
    "dip": (0.1, math.log(0.1)),
}
"""The alternatives that windows are weighed against, as factors of the forecast, and their logarithms."""

ALARM: Final = 5 * math.log(10)
"""Evidence in nats at which a run becomes an anomaly: a likelihood ratio of a hundred thousand."""

TELLING: Final = 1.0
"""Evidence in nats that a window needs to begin or prolong a run."""

WARM_UP: Final = 6 * HOUR_WINDOWS
"""Windows since a key's first during which it raises no alarm."""

QUIET: Final = HOUR_WINDOWS // 2
"""Windows without evidence after which a run is over."""

OLD_NEWS: Final = 3 * HOUR_WINDOWS
"""Windows after which the model hurries to follow an episode."""

WATCHED: Final = 1.0
"""Expected requests per window from which a missing request is worth a look at every window."""

DOZE: Final = HOUR_WINDOWS
"""Windows between looks at a silent key that nobody expects much of."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Evidence of one kind in consecutive windows; all zero while there is none."""

    nats: float = 0.0
    """Evidence in hand, at most `ALARM` (so that a long episode can still end)."""
    open: bool = False
    """Whether the evidence has reached `ALARM`."""
    start_us: int = 0
    end_us: int = 0
    """End of the last window that spoke for the run."""
    observed: int = 0
    expected: float = 0.0
    """Requests up to `end_us`."""
    late_observed: int = 0
    late_expected: float = 0.0
    """Requests since `end_us`; they count only if the run goes on."""
    total: float = 0.0
    """Evidence without the limit on `nats`."""
    peak: float = 0.0
    """The highest `total`."""


class KeyState(msgspec.Struct, frozen=True, array_like=True):
    """All that is kept of one key: under 1.5 kB of JSON."""

    traffic: Traffic
    spike: Run
    dip: Run


class Episode(msgspec.Struct, frozen=True):
    """An anomaly of a key that the caller knows. Times are microseconds UTC; counts are requests."""

    kind: Kind
    start_us: int
    end_us: int
    observed: int
    expected: float
    score: float
    """Highest evidence of the episode, in powers of ten of the likelihood ratio."""


class Anomaly(msgspec.Struct, frozen=True):
    """One row of Zeitgeist's output. `start` and `end` are ISO 8601 with offset."""

    scope: Scope
    key: str
    kind: Kind
    start: str
    end: str
    observed: int
    expected: float
    score: float


class Step(msgspec.Struct, frozen=True):
    """What came of one window."""

    state: KeyState | None
    """The key's state from now on; None: nothing worth keeping, forget the key."""
    anomalies: tuple[Episode, ...]
    """Episodes that turned out to be over."""
    expected: float
    """Requests that the window should have had."""
    due_us: int
    """Start of the window to step next even if it has no traffic. Stepping earlier changes nothing."""


class Alert(msgspec.Struct, frozen=True):
    """An open window that already has more requests than a quiet one may have."""

    start_us: int
    observed: int
    expected: float
    score: float


NO_RUN: Final = Run()


def advance(state: KeyState | None, start_us: int, count: int) -> Step:
    """Steps a key through the window at `start_us`, once that is closed and had `count` requests.

    Windows must come in order; those left out since the last step had no requests, and are stepped first.
    """
    past = _catch_up(state, start_us)
    step = _enter(start_us, count) if past.state is None else _advance(past.state, count)
    return msgspec.structs.replace(step, anomalies=past.anomalies + step.anomalies) if past.anomalies else step


def finish(state: KeyState | None, end_us: int | None = None) -> tuple[Episode, ...]:
    """The last episodes of a key at the end of the input, with what is known of them.

    `end_us`: end of the last window of the input; windows left out before it had no requests. Without it,
    the key's last step is the end.
    """
    past = _catch_up(state, end_us or 0)
    return past.anomalies + (() if past.state is None else _open_episodes(past.state))


def early_alert(state: KeyState | None, start_us: int, count: int) -> Alert | None:
    """An alert if the window at `start_us`, still open, already has too many requests.

    Evidence for a spike only grows with the count, so a window that alerts early also does so when closed
    (given that earlier windows are closed by then as they are now). No second alert while a spike lasts.
    """
    if state is None or state.spike.open or _is_cold(state.traffic):
        return None
    due = model.forecast(state.traffic, start_us)
    nats = state.spike.nats + evidence("spike", count, due)
    return Alert(start_us, count, due.mean, nats / math.log(10)) if nats >= ALARM else None


def evidence(kind: Kind, count: int, due: Forecast) -> float:
    """Nats by which a count speaks for traffic changed by the kind's factor rather than as forecast.

    The forecast has the benefit of its doubt: a spike must stand out from the most that was meant.
    """
    factor, log_factor = FACTORS[kind]
    mean = due.mean * (1 + due.doubt if kind == "spike" else 1 - due.doubt)
    return (count * log_factor - (factor - 1) * mean) / due.spread


def name_anomaly(scope: Scope, key: str, episode: Episode, offset_s: int = 0) -> Anomaly:
    """The output row of a key's episode, times in the zone `offset_s` seconds east of UTC."""
    return Anomaly(
        scope,
        key,
        episode.kind,
        iso_time(episode.start_us, offset_s),
        iso_time(episode.end_us, offset_s),
        episode.observed,
        round(episode.expected, 1),
        round(episode.score, 2),
    )


def sort_anomalies(anomalies: Iterable[Anomaly]) -> list[Anomaly]:
    """The one order of an output file: by (start, scope, key, kind); all rows share an offset."""
    return sorted(anomalies, key=lambda row: (row.start, row.scope, row.key, row.kind))


def iso_time(time_us: int, offset_s: int = 0) -> str:
    """ISO 8601 time, to the second, with an offset of `offset_s` seconds east of UTC."""
    zone = timezone(timedelta(seconds=offset_s))
    return datetime.fromtimestamp(time_us // 1_000_000, zone).isoformat()


def _catch_up(state: KeyState | None, until_us: int) -> Step:
    """Steps through windows without traffic up to `until_us`, or until the key is forgotten."""
    ended: tuple[Episode, ...] = ()
    while state is not None and state.traffic.next_us < until_us:
        step = _advance(state, 0)
        state, ended = step.state, ended + step.anomalies
    return Step(state, ended, 0.0, until_us)


def _enter(start_us: int, count: int) -> Step:
    """The first window of a key that has no state."""
    next_us = start_us + WINDOW_US
    if not count:
        return Step(None, (), 0.0, next_us)
    return Step(KeyState(model.begin(start_us, count), NO_RUN, NO_RUN), (), float(count), next_us)


def _advance(state: KeyState, count: int) -> Step:
    """Steps a key through its next window."""
    traffic = state.traffic
    due = model.forecast(traffic, traffic.next_us)
    learned = model.learn(traffic, count, due, _is_old_news(state))
    if _is_cold(traffic):
        return _settle(KeyState(learned, NO_RUN, NO_RUN), (), due.mean)
    spike = _follow("spike", state.spike, traffic.next_us, count, due)
    dip = _follow("dip", state.dip, traffic.next_us, count, due)
    ended: tuple[Episode, ...] = ()
    if state.spike.open or state.dip.open:
        ended = _ended("spike", state.spike, spike) + _ended("dip", state.dip, dip)
    return _settle(KeyState(learned, spike, dip), ended, due.mean)


def _settle(state: KeyState, ended: tuple[Episode, ...], mean: float) -> Step:
    """The step's result; without a state if the key may be forgotten and has nothing to report."""
    next_us = state.traffic.next_us
    if model.is_spent(state.traffic) and not (state.spike.open or state.dip.open):
        return Step(None, ended, mean, next_us)
    busy = mean >= WATCHED or state.spike.end_us > 0 or state.dip.end_us > 0
    return Step(state, ended, mean, next_us if busy else next_us + (DOZE - 1) * WINDOW_US)


def _follow(kind: Kind, run: Run, start_us: int, count: int, due: Forecast) -> Run:
    """A run after one more window; `NO_RUN` if it is over."""
    gained = evidence(kind, count, due)
    if gained >= TELLING:
        return _prolong(run, start_us, count, due.mean, gained)
    if not run.end_us:
        return NO_RUN
    is_used_up = run.nats + gained <= 0 and not run.open
    is_quiet = start_us + WINDOW_US - run.end_us >= QUIET * WINDOW_US
    return NO_RUN if is_used_up or is_quiet else _wait(run, count, due.mean, gained)


def _prolong(run: Run, start_us: int, count: int, mean: float, gained: float) -> Run:
    """The run, or a new one, with a window that speaks for it."""
    total = run.total + gained
    return Run(
        min(run.nats + gained, ALARM),
        run.open or run.nats + gained >= ALARM,
        run.start_us if run.end_us else start_us,
        start_us + WINDOW_US,
        run.observed + run.late_observed + count,
        run.expected + run.late_expected + mean,
        total=total,
        peak=max(run.peak, total),
    )


def _wait(run: Run, count: int, mean: float, gained: float) -> Run:
    """The run with a window that does not speak for it, in case later ones do."""
    return msgspec.structs.replace(
        run,
        nats=max(run.nats + gained, 0.0),
        total=run.total + gained,
        late_observed=run.late_observed + count,
        late_expected=run.late_expected + mean,
    )


def _ended(kind: Kind, before: Run, after: Run) -> tuple[Episode, ...]:
    """The episode that a window ended, if it did."""
    return (_episode(kind, before),) if before.open and not after.open else ()


def _open_episodes(state: KeyState) -> tuple[Episode, ...]:
    """Episodes still in progress, as far as they are known."""
    spikes = (_episode("spike", state.spike),) if state.spike.open else ()
    return spikes + ((_episode("dip", state.dip),) if state.dip.open else ())


def _episode(kind: Kind, run: Run) -> Episode:
    """The report on a run."""
    return Episode(kind, run.start_us, run.end_us, run.observed, run.expected, run.peak / math.log(10))


def _is_cold(traffic: Traffic) -> bool:
    """Whether too little is known of a key for its next window to raise an alarm."""
    return model.age(traffic) < WARM_UP


def _is_old_news(state: KeyState) -> bool:
    """Whether an episode has lasted so long that the model should hurry to follow it."""
    if not (state.spike.open or state.dip.open):
        return False
    since_us = state.traffic.next_us - OLD_NEWS * WINDOW_US
    return any(run.open and run.start_us <= since_us for run in (state.spike, state.dip))
