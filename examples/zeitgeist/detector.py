"""Finds spikes and dips in one key's windows: the step that Zeitgeist's window counts are fed to.

A window is judged by its evidence: the logarithm (nats) of a ratio.  The ratio says how much likelier its count is if traffic
had tripled (spike) or fallen to a tenth (dip) than if it were as forecast. Counts are taken as Poisson and the evidence
divided by the key's spread, the usual quasi-likelihood for counts that come in bunches. Evidence adds up over windows and is
dropped once it falls to nothing (Page's CUSUM test).  So one wild window of a busy key raises the alarm, and so do several
odd ones of a quiet key. `ALARM` is a likelihood ratio of a hundred thousand: with counts as random as assumed, at most one
false alarm in as many windows. A key whose counts are wilder than that needs as much more as its own past shows (`noise`).
The alternatives also say what is worth reporting at all.  What stays below 1.8 times or above 0.4 of the forecast is evidence
*against* an anomaly, however many requests there are. That dead zone is also what absorbs a level that is a bit off, which is
why the spread measures only the bunching.

A silence may be shorter than a window.  The site's counts come with those of ten seconds each.  A stretch without any is a
dip by itself if enough was due in it (`silence`).

An episode is one run of evidence. It begins with the first window that spoke for it, ends with the last, and
is reported after half an hour with no other. After three hours a change is no news any more: the model
hurries to follow it, and the episode ends once the new level is expected. An outage is the exception: from empty
windows of a dip nothing is learned, so it is one episode however long it is, and what comes after it is expected.
In a key's first six hours nothing is known of it and no alarm is raised.

Everything here is a pure function of the key's counts in the order of the windows, so anomalies do not
depend on how records arrived.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Final, Literal

import msgspec

from examples.zeitgeist import model, noise, silence
from examples.zeitgeist.evidence import ALARM, FACTORS, TELLING, Kind, Piece, evidence
from examples.zeitgeist.model import DAY_WINDOWS, HOUR_US, HOUR_WINDOWS, WINDOW_US, Rhythm, Traffic
from examples.zeitgeist.noise import Tail
from examples.zeitgeist.silence import Hush

Scope = Literal["page", "site"]

WARM_UP: Final = 6 * HOUR_WINDOWS
"""Windows since a key's first during which it raises no alarm."""

QUIET: Final = HOUR_WINDOWS // 2
"""Windows without evidence after which a run is over."""

OLD_NEWS: Final = 3 * HOUR_WINDOWS
"""Windows after which the model hurries to follow an episode."""

WATCH: Final = HOUR_WINDOWS
"""Windows between looks at a silent key with an episode in progress."""

DOZE: Final = DAY_WINDOWS
"""Windows between looks at another silent key: nothing can come of its silence but that it is forgotten."""

LONGEST_OUTAGE: Final = 28 * DAY_WINDOWS
"""Windows of silence after which a key is given up: its episode is reported, and it is forgotten."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Evidence of one kind in consecutive windows; all zero while there is none."""

    nats: float = 0.0
    """Evidence in hand, at most the key's `bar` (so that a long episode can still end)."""
    open: bool = False
    """Whether the evidence has reached the bar."""
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
    """All that is kept of one key, except its rhythm: a few hundred bytes."""

    traffic: Traffic
    spike: Run
    dip: Run
    due_us: int
    """Start of the window to step next even if it has no traffic."""
    bursts: Tail = noise.NO_TAIL
    """How far past runs of spikes went."""
    hush: Hush = silence.NO_HUSH


class Episode(msgspec.Struct, frozen=True):
    """An anomaly of a key that the caller knows. Times are microseconds UTC; counts are requests."""

    kind: Kind
    start_us: int
    end_us: int
    observed: int
    expected: float
    score: float
    """Highest evidence of the episode, in powers of ten of the likelihood ratio."""
    open: bool = False
    """Whether it was still going on when the input ended."""


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
    open: bool
    """Whether the anomaly was still going on when the log ended: `end` is where the log ends, or before it."""


class Step(msgspec.Struct, frozen=True):
    """What came of one window."""

    state: KeyState | None
    """The key's state from now on; None: nothing worth keeping, forget the key."""
    rhythm: Rhythm
    """The key's rhythm from now on: the same object as before unless an hour has ended."""
    anomalies: tuple[Episode, ...]
    """Episodes that turned out to be over."""


class Alert(msgspec.Struct, frozen=True):
    """An open window that already has more requests than a quiet one may have."""

    start_us: int
    observed: int
    expected: float
    score: float


NO_RUN: Final = Run()


def advance(
    state: KeyState | None,
    rhythm: Rhythm,
    start_us: int,
    count: int,
    slots: Sequence[int] = (),
    end_us: int | None = None,
) -> Step:
    """Step a key through its window at `start_us`, and through the empty ones that were left out before it.

    Windows come in order. `start_us` of a window without requests is the state's `due_us`. `slots` are the counts of
    the window's `silence.SLOTS` equal parts, for a key of which they are known.
    """
    if not count:
        return _catch_up(state, rhythm, start_us + WINDOW_US)
    past = _catch_up(state, rhythm, start_us)
    if past.state is None:
        step = _enter(start_us, count)
    else:
        step = _advance(past.state, past.rhythm, count, slots, end_us)
    return msgspec.structs.replace(step, anomalies=past.anomalies + step.anomalies) if past.anomalies else step


def finish(state: KeyState | None, rhythm: Rhythm, end_us: int | None = None) -> tuple[Episode, ...]:
    """The last episodes of a key at the end of the input, with what is known of them.

    `end_us`: end of the input; windows left out before it had no requests. Without it, the key's last step is the end.
    """
    if end_us is None:
        return () if state is None else _open_episodes(state, True)
    past = _catch_up(state, rhythm, end_us - end_us % WINDOW_US)
    if past.state is not None and past.state.traffic.next_us < end_us:
        last = _advance(past.state, past.rhythm, 0, end_us=end_us)
        past = msgspec.structs.replace(last, anomalies=past.anomalies + last.anomalies)
    return past.anomalies + (() if past.state is None else _open_episodes(past.state, True))


def early_alert(state: KeyState | None, rhythm: Rhythm, start_us: int, count: int) -> Alert | None:
    """An alert if the window at `start_us`, still open, already has too many requests.

    Evidence for a spike only grows with the count, so a window that alerts early also does so when closed
    (given that earlier windows are closed by then as they are now). No second alert while a spike lasts.
    """
    if state is None or state.spike.open or _is_cold(state.traffic):
        return None
    due = model.forecast(state.traffic, rhythm, start_us)
    nats = state.spike.nats + evidence("spike", count, due)
    return Alert(start_us, count, due.mean, nats / math.log(10)) if nats >= bar(state, start_us) else None


def bar(state: KeyState, at_us: int) -> float:
    """Evidence in nats at which a run of spikes of this key becomes an anomaly.

    For dips it is `ALARM`: no count is below none, so they have no tail.
    """
    return max(ALARM, noise.level(state.bursts, state.traffic.first_us + WARM_UP * WINDOW_US, at_us))


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
        episode.open,
    )


def sort_anomalies(anomalies: Iterable[Anomaly]) -> list[Anomaly]:
    """The one order of an output file: by (start, scope, key, kind); all rows share an offset."""
    return sorted(anomalies, key=lambda row: (row.start, row.scope, row.key, row.kind))


def iso_time(time_us: int, offset_s: int = 0) -> str:
    """ISO 8601 time, to the second, with an offset of `offset_s` seconds east of UTC."""
    zone = timezone(timedelta(seconds=offset_s))
    return datetime.fromtimestamp(time_us // 1_000_000, zone).isoformat()


def _catch_up(state: KeyState | None, rhythm: Rhythm, until_us: int) -> Step:
    """Steps through windows without traffic up to `until_us`, or until the key is forgotten.

    The steps are cut at `due_us`, whether a timer asks for them or a later window: both give the same state.
    """
    ended: tuple[Episode, ...] = ()
    while state is not None and state.traffic.next_us < until_us:
        step = _pass(state, rhythm, min(until_us, state.due_us + WINDOW_US))
        state, rhythm, ended = step.state, step.rhythm, ended + step.anomalies
    return Step(state, rhythm, ended)


def _pass(state: KeyState, rhythm: Rhythm, until_us: int) -> Step:
    """Steps through windows without traffic up to `until_us`, at most the one that is due, or a part of them."""
    next_us = state.traffic.next_us
    windows = (min(until_us, next_us - next_us % HOUR_US + HOUR_US) - next_us) // WINDOW_US
    if windows < 1 or state.spike.end_us or state.dip.end_us or not _is_sparse(state.traffic, rhythm):
        return _advance(state, rhythm, 0)
    traffic, rhythm = model.pass_silence(state.traffic, rhythm, windows)
    passed = KeyState(traffic, NO_RUN, NO_RUN, state.due_us, state.bursts, state.hush)
    return _settle(passed, rhythm, ())


def _is_sparse(traffic: Traffic, rhythm: Rhythm) -> bool:
    """Whether so little is expected in this hour that an empty window tells nothing."""
    most = model.most_expected(traffic, rhythm, traffic.next_us)
    return most < model.NEXT_TO_NOTHING and most * (1 - FACTORS["dip"][0]) < TELLING * model.spread(traffic)


def _enter(start_us: int, count: int) -> Step:
    """The first window of a key that has no state."""
    state = KeyState(model.begin(start_us, count), NO_RUN, NO_RUN, _look(start_us + WINDOW_US, DOZE))
    return Step(state, model.UNKNOWN, ())


def _advance(state: KeyState, rhythm: Rhythm, count: int, slots: Sequence[int] = (), end_us: int | None = None) -> Step:
    """Steps a key through its next window."""
    traffic = state.traffic
    start_us = traffic.next_us
    due = model.forecast(traffic, rhythm, start_us)
    if end_us is not None and end_us < start_us + WINDOW_US:  # what comes after the end is not missing
        due = msgspec.structs.replace(due, mean=due.mean * (end_us - start_us) / WINDOW_US)
        slots = slots[: -(-(end_us - start_us) // silence.SLOT_US)]
    hush, silences = state.hush, _NONE
    if slots or (hush.mean and not count):
        hush, silences = silence.listen(hush, start_us, due, slots or silence.EMPTY)
    is_empty_hour = due.said <= 0.0 and due.doubt < model.CLOCK_ERROR  # known to have no requests
    if not count and (state.dip.open or silences) and not is_empty_hour:
        learned, rhythm_after = model.stand_still(traffic, rhythm)
    else:
        missed = sum(piece.due.mean for piece in silences if piece.start_us >= start_us)
        learned, rhythm_after = model.learn(traffic, rhythm, count + round(missed), due, _is_old_news(state))
    if _is_cold(traffic):
        return _settle(KeyState(learned, NO_RUN, NO_RUN, state.due_us, hush=hush), rhythm_after, ())
    whole = Piece(start_us, WINDOW_US, count, due)
    spike, ended = _follow("spike", state, whole)
    bursts = state.bursts
    if state.spike.end_us and not spike.end_us:
        bursts = noise.remember(bursts, state.spike.peak, start_us)
    dip = state.dip
    for piece in silences or (whole,):
        dip, over = _follow("dip", msgspec.structs.replace(state, dip=dip) if silences else state, piece)
        ended += over
    return _settle(KeyState(learned, spike, dip, state.due_us, bursts, hush), rhythm_after, ended)


_NONE: Final[list[Piece]] = []


def _settle(state: KeyState, rhythm: Rhythm, ended: tuple[Episode, ...]) -> Step:
    """The step's result; without a state if the key may be forgotten and has nothing to report."""
    is_open = state.spike.open or state.dip.open
    if model.is_spent(state.traffic) and not is_open:
        return Step(None, model.UNKNOWN, ended)
    if state.traffic.idle >= LONGEST_OUTAGE:
        return Step(None, model.UNKNOWN, ended + _open_episodes(state, False))
    next_us = state.traffic.next_us
    wanted_us = _look(next_us, WATCH if is_open else DOZE)
    # A look that is due already is left where it is, so that few timers are set.
    if state.due_us < next_us or wanted_us < state.due_us:
        state = msgspec.structs.replace(state, due_us=wanted_us)
    return Step(state, rhythm, ended)


def _look(next_us: int, windows: int) -> int:
    """The window to look at a silent key, at most so many from now: the last of an hour, when sparse counts have come."""
    until_us = next_us + windows * WINDOW_US
    return until_us - until_us % HOUR_US - WINDOW_US


def _follow(kind: Kind, state: KeyState, piece: Piece) -> tuple[Run, tuple[Episode, ...]]:
    """A key's run of one kind after one more piece, and the episode that it ended, if it did."""
    run = state.spike if kind == "spike" else state.dip
    gained = evidence(kind, piece.count, piece.due)
    if gained >= TELLING:
        is_near = kind == "spike" and run.nats + gained >= ALARM
        return _prolong(run, piece, gained, bar(state, piece.start_us) if is_near else ALARM), ()
    if not run.end_us:
        return NO_RUN, ()
    is_used_up = run.nats + gained <= 0 and not run.open
    is_quiet = piece.start_us + piece.length_us - run.end_us >= QUIET * WINDOW_US
    if not (is_used_up or is_quiet):
        return _wait(run, piece, gained), ()
    return NO_RUN, (_episode(kind, run, False),) if run.open else ()


def _prolong(run: Run, piece: Piece, gained: float, limit: float) -> Run:
    """The run, or a new one, with a piece that speaks for it; `limit` is the evidence that opens it."""
    total = run.total + gained
    return Run(
        min(run.nats + gained, limit),
        run.open or run.nats + gained >= limit,
        run.start_us if run.end_us else piece.start_us,
        piece.start_us + piece.length_us,
        run.observed + run.late_observed + piece.count,
        run.expected + run.late_expected + piece.due.mean,
        total=total,
        peak=max(run.peak, total),
    )


def _wait(run: Run, piece: Piece, gained: float) -> Run:
    """The run with a piece that does not speak for it, in case later ones do."""
    return msgspec.structs.replace(
        run,
        nats=max(run.nats + gained, 0.0),
        total=run.total + gained,
        late_observed=run.late_observed + piece.count,
        late_expected=run.late_expected + piece.due.mean,
    )


def _open_episodes(state: KeyState, is_open: bool) -> tuple[Episode, ...]:
    """Episodes still in progress, as far as they are known."""
    spikes = (_episode("spike", state.spike, is_open),) if state.spike.open else ()
    return spikes + ((_episode("dip", state.dip, is_open),) if state.dip.open else ())


def _episode(kind: Kind, run: Run, is_open: bool) -> Episode:
    """The report on a run."""
    return Episode(kind, run.start_us, run.end_us, run.observed, run.expected, run.peak / math.log(10), is_open)


def _is_cold(traffic: Traffic) -> bool:
    """Whether too little is known of a key for its next window to raise an alarm."""
    return model.age(traffic) < WARM_UP


def _is_old_news(state: KeyState) -> bool:
    """Whether an episode has lasted so long that the model should hurry to follow it; not while it is silent."""
    if not (state.spike.open or state.dip.open) or state.traffic.idle:
        return False
    since_us = state.traffic.next_us - OLD_NEWS * WINDOW_US
    return any(run.open and run.start_us <= since_us for run in (state.spike, state.dip))
