"""The detector: windows in, episodes out."""

import random
from collections.abc import Sequence

import msgspec
import pytest

from examples.zeitgeist import detector, model
from examples.zeitgeist.detector import WARM_UP, Episode, KeyState, Kind
from examples.zeitgeist.model import DAY_US, DAY_WINDOWS, HOUR_WINDOWS, WINDOW_US

START_US = 4 * DAY_US  # a Monday

Counts = list[int]


def steps(counts: Sequence[int], state: KeyState | None = None) -> tuple[KeyState | None, list[Episode]]:
    """Steps through every window, one by one."""
    first_us = state.traffic.next_us if state else START_US
    found: list[Episode] = []
    for at, count in enumerate(counts):
        step = detector.advance(state, first_us + at * WINDOW_US, count)
        state, found = step.state, [*found, *step.anomalies]
    return state, found


def lazily(counts: Sequence[int]) -> list[Episode]:
    """Steps only through windows with traffic and those that are due."""
    state: KeyState | None = None
    found: list[Episode] = []
    due_us = START_US
    for at, count in enumerate(counts):
        start_us = START_US + at * WINDOW_US
        if count or (state is not None and start_us >= due_us):
            step = detector.advance(state, start_us, count)
            state, due_us, found = step.state, step.due_us, [*found, *step.anomalies]
    return [*found, *detector.finish(state, START_US + len(counts) * WINDOW_US)]


def eagerly(counts: Sequence[int]) -> list[Episode]:
    state, found = steps(counts)
    return [*found, *detector.finish(state)]


def noise(mean: float, windows: int, seed: int = 0) -> Counts:
    dice = random.Random(seed)
    return [sum(dice.random() < mean / 100 for _ in range(100)) for _ in range(windows)]


def warm(mean: float, seed: int = 0) -> KeyState:
    state, _ = steps(noise(mean, DAY_WINDOWS, seed))
    assert state is not None
    return state


def at(window: int) -> int:
    """Start of a window of the second day."""
    return START_US + DAY_US + window * WINDOW_US


def test_nothing_comes_of_nothing() -> None:
    assert detector.advance(None, START_US, 0) == detector.Step(None, (), 0.0, START_US + WINDOW_US)
    assert detector.finish(None) == ()
    assert detector.early_alert(None, START_US, 10**6) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mean", [0.2, 3, 40])
def test_random_traffic_raises_no_alarm(mean: float, seed: int) -> None:
    assert eagerly(noise(mean, 5 * DAY_WINDOWS, seed)) == []


def test_a_cold_start_is_no_anomaly() -> None:
    counts = [at * 10 for at in range(WARM_UP)]
    assert eagerly(counts) == []


@pytest.mark.parametrize("silent", [False, True])
def test_suppression_ends_after_six_hours(silent: bool) -> None:
    calm = noise(30, WARM_UP)
    kind: Kind = "dip" if silent else "spike"
    found = eagerly([*calm, *([0] * 3 if silent else [150] * 3)])
    assert [episode.kind for episode in found] == [kind]


def test_a_spike_is_one_episode_with_its_totals() -> None:
    _, found = steps([*noise(10, 3, seed=1), *[50, 60, 55], *noise(10, 12, seed=2)], warm(10))
    (spike,) = found
    assert (spike.kind, spike.start_us, spike.end_us, spike.observed) == ("spike", at(3), at(6), 165)
    assert spike.expected == pytest.approx(33, rel=0.3)
    assert spike.score > 5


def test_a_dip_is_one_episode_with_its_totals() -> None:
    _, found = steps([*noise(20, 3, seed=1), 0, 0, 1, 0, *noise(20, 12, seed=2)], warm(20))
    (dip,) = found
    assert (dip.kind, dip.start_us, dip.end_us, dip.observed) == ("dip", at(3), at(7), 1)
    assert dip.expected == pytest.approx(80, rel=0.2)


def test_what_resumes_within_half_an_hour_is_the_same_episode() -> None:
    _, found = steps([80, 80, *[20] * 4, 80, 80, *[20] * 8, 80, 80, *[20] * 8], warm(20))
    assert [(e.start_us, e.end_us) for e in found] == [(at(0), at(8)), (at(16), at(18))]


def test_an_episode_is_reported_half_an_hour_after_its_end() -> None:
    state, found = steps([80, 80, *[20] * 5], warm(20))
    assert (found, state is not None and state.spike.open) == ([], True)
    assert len(steps([20], state)[1]) == 1


def test_an_episode_open_at_the_end_is_reported_as_far_as_known() -> None:
    state, found = steps([100, 100], warm(20))
    assert found == []
    (spike,) = detector.finish(state)
    assert (spike.start_us, spike.end_us, spike.observed) == (at(0), at(2), 200)


def test_a_silence_before_the_end_counts() -> None:
    assert [e.kind for e in detector.finish(warm(30), at(3))] == ["dip"]
    assert detector.finish(warm(30)) == ()


@pytest.mark.parametrize("level", [100, 2])
def test_a_lasting_change_ends_as_an_episode_within_hours(level: int) -> None:
    state, found = steps(noise(level, 12 * HOUR_WINDOWS), warm(20))
    assert state is not None
    assert found[0].end_us - found[0].start_us < 8 * HOUR_WINDOWS * WINDOW_US
    assert not state.spike.open
    assert not state.dip.open
    assert level / 3 < model.forecast(state.traffic, state.traffic.next_us).mean < level * 3


def test_a_small_change_is_no_anomaly_however_busy_the_key() -> None:
    state, _ = steps([10_000] * DAY_WINDOWS)
    assert steps([17_000] * 6 + [10_000] * 8 + [5_000] * 6, state)[1] == []


@pytest.mark.parametrize("seed", range(20))
def test_stepping_lazily_changes_nothing(seed: int) -> None:
    dice = random.Random(seed)
    counts: Counts = []
    while len(counts) < 3 * DAY_WINDOWS:
        mean = dice.choice([0, 0, 0.1, 1, 10, 60])
        counts += noise(mean, dice.randrange(1, 12 * HOUR_WINDOWS), dice.randrange(10**6))
    assert lazily(counts) == eagerly(counts)


def test_a_silent_key_of_which_little_is_expected_is_left_in_peace() -> None:
    calls = 0
    state: KeyState | None = None
    due_us = START_US
    for window in range(2 * DAY_WINDOWS):
        start_us = START_US + window * WINDOW_US
        if window in (0, 50, 100) or (state is not None and start_us >= due_us):
            step = detector.advance(state, start_us, int(window in (0, 50, 100)))
            state, due_us, calls = step.state, step.due_us, calls + 1
    assert state is None
    assert calls < 60


def test_a_key_seen_once_is_forgotten() -> None:
    state, found = steps([1, *[0] * HOUR_WINDOWS])
    assert (state, found) == (None, [])


def test_a_key_that_falls_silent_reports_everything_before_it_is_forgotten() -> None:
    state, _ = steps([30, 30], warm(2))
    found: list[Episode] = []
    while state is not None:
        step = detector.advance(state, state.traffic.next_us, 0)
        state, found = step.state, [*found, *step.anomalies]
    assert [episode.kind for episode in found] == ["spike", "dip"]


def test_a_state_is_small_and_survives_json() -> None:
    state, _ = steps(noise(300 / 7, 14 * DAY_WINDOWS))
    state, _ = steps([100, 0, 100, 0], state)
    packed = msgspec.json.encode(state)
    assert msgspec.json.decode(packed, type=KeyState) == state
    assert len(packed) < 1500


def test_a_state_from_json_goes_on_alike() -> None:
    state: KeyState | None = warm(10)
    other = msgspec.json.decode(msgspec.json.encode(state), type=KeyState)
    for count in [0, 0, 9, 80, 70, 0, 3, 9]:
        assert state is not None
        step = detector.advance(state, state.traffic.next_us, count)
        assert detector.advance(other, other.traffic.next_us, count) == step
        assert step.state is not None
        state, other = step.state, msgspec.json.decode(msgspec.json.encode(step.state), type=KeyState)


@pytest.mark.parametrize("mean", [1, 10, 60])
def test_an_early_alert_is_always_borne_out(mean: int) -> None:
    state = warm(mean)
    first = next(n for n in range(10_000) if detector.early_alert(state, at(0), n))
    alert = detector.early_alert(state, at(0), first)
    assert alert is not None
    assert (alert.start_us, alert.observed) == (at(0), first)
    for more in (0, 1, 100):
        step = detector.advance(state, at(0), first + more)
        assert step.state is not None
        assert step.state.spike.open
    before = detector.advance(state, at(0), first - 1)
    assert before.state is not None
    assert not before.state.spike.open


def test_no_second_alert_while_a_spike_lasts() -> None:
    state, _ = steps([500], warm(20))
    assert state is not None
    assert state.spike.open
    assert detector.early_alert(state, at(1), 500) is None


def test_no_alert_in_the_warm_up() -> None:
    state, _ = steps([1, 1, 1])
    assert detector.early_alert(state, START_US + 3 * WINDOW_US, 1000) is None


def test_rows_are_named_timed_and_sorted() -> None:
    episode = Episode("dip", START_US, START_US + WINDOW_US, 3, 12.345, 6.789)
    row = detector.name_anomaly("page", "/a", episode, -14400)
    assert row == detector.Anomaly(
        "page", "/a", "dip", "1970-01-04T20:00:00-04:00", "1970-01-04T20:05:00-04:00", 3, 12.3, 6.79
    )
    site = detector.name_anomaly("site", "", episode, -14400)
    later = detector.name_anomaly("site", "", Episode("dip", START_US + 1_000_000, 0, 0, 0.0, 0.0), -14400)
    assert detector.sort_anomalies([later, site, row]) == [row, site, later]


def test_evidence_grows_with_what_it_is_for() -> None:
    due = model.Forecast(10.0, 1.0, 0.0, 10.0)
    spikes = [detector.evidence("spike", n, due) for n in range(50)]
    dips = [detector.evidence("dip", n, due) for n in range(50)]
    assert spikes == sorted(spikes)
    assert dips == sorted(dips, reverse=True)
    assert spikes[10] < 0 > dips[10]
