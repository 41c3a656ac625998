"""The detector: windows in, episodes out."""

import math
import random
from collections.abc import Sequence

import msgspec
import pytest

from examples.zeitgeist import detector, model
from examples.zeitgeist.detector import WARM_UP, Episode, KeyState
from examples.zeitgeist.evidence import Kind, evidence
from examples.zeitgeist.model import DAY_US, DAY_WINDOWS, HOUR_US, HOUR_WINDOWS, WINDOW_US, Rhythm

START_US = 4 * DAY_US  # a Monday

Counts = list[int]


class Key(msgspec.Struct, frozen=True):
    """What is kept of one key."""

    state: KeyState | None = None
    rhythm: Rhythm = model.UNKNOWN


def steps(counts: Sequence[int], key: Key | None = None) -> tuple[Key, list[Episode]]:
    """Steps through every window, one by one."""
    key = key or Key()
    first_us = key.state.traffic.next_us if key.state else START_US
    found: list[Episode] = []
    for at, count in enumerate(counts):
        step = detector.advance(key.state, key.rhythm, first_us + at * WINDOW_US, count)
        key, found = Key(step.state, step.rhythm), [*found, *step.anomalies]
    return key, found


def lazily(counts: Sequence[int], timers: bool) -> tuple[Key, list[Episode]]:
    """Steps only through windows with traffic, and with `timers` through those that are due."""
    key, found = Key(), list[Episode]()
    for at, count in enumerate(counts):
        start_us = START_US + at * WINDOW_US
        if count or (timers and key.state is not None and start_us == key.state.due_us):
            step = detector.advance(key.state, key.rhythm, start_us, count)
            key, found = Key(step.state, step.rhythm), [*found, *step.anomalies]
    return key, [*found, *detector.finish(key.state, key.rhythm, START_US + len(counts) * WINDOW_US)]


def eagerly(counts: Sequence[int]) -> list[Episode]:
    key, found = steps(counts)
    return [*found, *detector.finish(key.state, key.rhythm)]


def noise(mean: float, windows: int, seed: int = 0) -> Counts:
    dice = random.Random(seed)
    return [sum(dice.random() < mean / 100 for _ in range(100)) for _ in range(windows)]


def warm(mean: float, seed: int = 0) -> Key:
    key, _ = steps(noise(mean, DAY_WINDOWS, seed))
    assert key.state is not None
    return key


def step_once(key: Key, start_us: int, count: int) -> KeyState:
    state = detector.advance(key.state, key.rhythm, start_us, count).state
    assert state is not None
    return state


def daily(days: int, seed: int) -> Counts:
    """Some days of traffic with a rhythm: 30 requests a window at night, 170 at noon."""
    dice = random.Random(f"daily {seed}")
    means = [100 - 70 * math.cos(2 * math.pi * at / DAY_WINDOWS) for at in range(days * DAY_WINDOWS)]
    return [max(0, round(dice.gauss(mean, 1.5 * math.sqrt(mean)))) for mean in means]


def at(window: int) -> int:
    """Start of a window of the second day."""
    return START_US + DAY_US + window * WINDOW_US


def test_nothing_comes_of_nothing() -> None:
    assert detector.advance(None, model.UNKNOWN, START_US, 0) == detector.Step(None, model.UNKNOWN, ())
    assert detector.finish(None, model.UNKNOWN) == ()
    assert detector.early_alert(None, model.UNKNOWN, START_US, 10**6) is None


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
    key, found = steps([80, 80, *[20] * 5], warm(20))
    assert (found, key.state is not None and key.state.spike.open) == ([], True)
    assert len(steps([20], key)[1]) == 1


def test_an_episode_open_at_the_end_is_reported_as_far_as_known() -> None:
    key, found = steps([100, 100], warm(20))
    assert found == []
    (spike,) = detector.finish(key.state, key.rhythm)
    assert (spike.start_us, spike.end_us, spike.observed, spike.open) == (at(0), at(2), 200, True)
    _, found = steps([100, 100, *[20] * 8], warm(20))
    assert [episode.open for episode in found] == [False]


def test_a_silence_before_the_end_counts() -> None:
    key = warm(30)
    assert [(e.kind, e.open) for e in detector.finish(key.state, key.rhythm, at(3))] == [("dip", True)]
    assert detector.finish(key.state, key.rhythm) == ()


@pytest.mark.parametrize("level", [100, 2])
def test_a_lasting_change_ends_as_an_episode_within_hours(level: int) -> None:
    key, found = steps(noise(level, 12 * HOUR_WINDOWS), warm(20))
    state = key.state
    assert state is not None
    assert found[0].end_us - found[0].start_us < 8 * HOUR_WINDOWS * WINDOW_US
    assert not state.spike.open
    assert not state.dip.open
    assert level / 3 < model.forecast(state.traffic, key.rhythm, state.traffic.next_us).mean < level * 3


def test_a_small_change_is_no_anomaly_however_busy_the_key() -> None:
    key, _ = steps([10_000] * DAY_WINDOWS)
    assert steps([17_000] * 6 + [10_000] * 8 + [5_000] * 6, key)[1] == []


@pytest.mark.parametrize("seed", range(20))
def test_timers_for_silent_keys_change_nothing(seed: int) -> None:
    dice = random.Random(seed)
    counts: Counts = []
    while len(counts) < 3 * DAY_WINDOWS:
        mean = dice.choice([0, 0, 0.1, 1, 10, 60])
        counts += noise(mean, dice.randrange(1, 12 * HOUR_WINDOWS), dice.randrange(10**6))
    counts.append(5)
    assert lazily(counts, timers=True) == lazily(counts, timers=False)


def test_a_silent_key_is_looked_at_when_an_hour_has_ended() -> None:
    """Until then windows of it with few requests may still be held back."""
    key = Key()
    for count in noise(0.7, 2 * DAY_WINDOWS, seed=9):
        step = detector.advance(key.state, key.rhythm, key.state.traffic.next_us if key.state else START_US, count)
        key = Key(step.state, step.rhythm)
        assert key.state is None or (key.state.due_us + WINDOW_US) % HOUR_US == 0


@pytest.mark.parametrize("mean", [0.05, 0.3, 2, 30])
def test_empty_windows_in_one_step_are_those_one_by_one(mean: float) -> None:
    counts = [*noise(mean, 3 * DAY_WINDOWS, seed=4), 1]
    one_by_one, together = steps(counts)[0], lazily(counts, timers=False)[0]
    assert one_by_one.state is not None
    assert together.state is not None
    late_us = START_US + 3 * DAY_US + 3 * HOUR_US
    for key in (one_by_one, together):
        assert key.rhythm.days == one_by_one.rhythm.days
    means = [model.forecast(key.state.traffic, key.rhythm, late_us).mean for key in (one_by_one, together) if key.state]
    assert means[0] == pytest.approx(means[1], rel=0.05)


def test_a_silent_key_of_which_little_is_expected_is_left_in_peace() -> None:
    calls = 0
    key = Key()
    for window in range(2 * DAY_WINDOWS):
        start_us = START_US + window * WINDOW_US
        count = int(window in (0, 50, 100))
        if count or (key.state is not None and start_us == key.state.due_us):
            step = detector.advance(key.state, key.rhythm, start_us, count)
            key, calls = Key(step.state, step.rhythm), calls + 1
    assert key.state is None
    assert calls <= 5


@pytest.mark.parametrize("hours", [5, 30, 82, 300])
@pytest.mark.parametrize("stray", [False, True])
def test_an_outage_is_one_episode_and_teaches_nothing(hours: int, stray: bool) -> None:
    """Whatever its length, with a request now and then or none, traffic is expected after it as it was before."""
    windows = hours * HOUR_WINDOWS
    key, found = steps(daily(6, seed=1))
    assert found == []
    outage = [int(stray and at % 131 == 100) for at in range(windows)]
    resumed = daily(9 + hours // 24, seed=2)[6 * DAY_WINDOWS + windows :]
    _, found = steps([*outage, *resumed], key)
    (dip,) = found
    assert dip.kind == "dip"
    assert dip.start_us == START_US + 6 * DAY_US
    assert dip.end_us == dip.start_us + windows * WINDOW_US
    assert dip.observed == sum(outage)
    assert dip.expected == pytest.approx(sum(daily(7 + hours // 24, seed=3)[6 * DAY_WINDOWS :][:windows]), rel=0.25)


def test_forecasts_after_an_outage_are_those_without_it() -> None:
    key, _ = steps(daily(6, seed=1))
    outage, _ = steps([0] * 82 * HOUR_WINDOWS, key)
    calm, _ = steps(daily(10, seed=5)[6 * DAY_WINDOWS :][: 82 * HOUR_WINDOWS], key)
    for hour in range(24):
        assert outage.state is not None
        assert calm.state is not None
        at_us = outage.state.traffic.next_us + hour * HOUR_US
        had = model.forecast(outage.state.traffic, outage.rhythm, at_us).mean
        assert had == pytest.approx(model.forecast(calm.state.traffic, calm.rhythm, at_us).mean, rel=0.2)


def test_nights_without_a_request_are_learned_in_the_first() -> None:
    """A site that is open from 8 to 18 is not out of order all night."""
    open_hours = [40 if 8 <= at % DAY_WINDOWS // HOUR_WINDOWS < 18 else 0 for at in range(5 * DAY_WINDOWS)]
    dice = random.Random(3)
    _, found = steps([sum(dice.random() < 0.5 for _ in range(2 * mean)) for mean in open_hours])
    assert [e for e in found if e.start_us > START_US + 2 * DAY_US and e.end_us - e.start_us > 3 * HOUR_US] == []


def test_a_key_that_stays_away_is_given_up() -> None:
    key, found = steps([0] * (detector.LONGEST_OUTAGE + 1), warm(30))
    assert key.state is None
    (dip,) = found
    assert not dip.open


def test_what_comes_after_the_end_of_the_input_is_not_missing() -> None:
    key = warm(100)
    for seconds, count in ((10, 4), (60, 20), (290, 95)):
        end_us = at(0) + seconds * 1_000_000
        step = detector.advance(key.state, key.rhythm, at(0), count, (), end_us)
        assert detector.finish(step.state, step.rhythm, end_us) == ()
    assert [e.open for e in detector.finish(key.state, key.rhythm, at(0) + 290_000_000)] == [True]


def test_a_key_seen_once_is_forgotten() -> None:
    key, found = steps([1, *[0] * HOUR_WINDOWS])
    assert (key.state, found) == (None, [])


def test_a_key_that_falls_silent_reports_everything_before_it_is_forgotten() -> None:
    key, _ = steps([30, 30], warm(2))
    found: list[Episode] = []
    while key.state is not None:
        step = detector.advance(key.state, key.rhythm, key.state.due_us, 0)
        key, found = Key(step.state, step.rhythm), [*found, *step.anomalies]
    assert [episode.kind for episode in found] == ["spike", "dip"]


def test_a_state_is_small_and_survives_json() -> None:
    key, _ = steps(noise(300 / 7, 14 * DAY_WINDOWS))
    key, _ = steps([100, 0, 100, 0], key)
    packed = msgspec.json.encode(key.state), msgspec.json.encode(key.rhythm)
    assert msgspec.json.decode(packed[0], type=KeyState) == key.state
    assert msgspec.json.decode(packed[1], type=Rhythm) == key.rhythm
    assert max(map(len, packed)) < 800


def test_a_state_from_json_goes_on_alike() -> None:
    key = warm(10)
    other = msgspec.json.decode(msgspec.json.encode(key), type=Key)
    for count in [0, 0, 9, 80, 70, 0, 3, 9]:
        assert key.state is not None
        start_us = key.state.traffic.next_us
        step = detector.advance(key.state, key.rhythm, start_us, count)
        assert detector.advance(other.state, other.rhythm, start_us, count) == step
        key = Key(step.state, step.rhythm)
        other = msgspec.json.decode(msgspec.json.encode(key), type=Key)


@pytest.mark.parametrize("mean", [1, 10, 60])
def test_an_early_alert_is_always_borne_out(mean: int) -> None:
    key = warm(mean)
    first = next(n for n in range(10_000) if detector.early_alert(key.state, key.rhythm, at(0), n))
    alert = detector.early_alert(key.state, key.rhythm, at(0), first)
    assert alert is not None
    assert (alert.start_us, alert.observed) == (at(0), first)
    for more in (0, 1, 100):
        assert step_once(key, at(0), first + more).spike.open
    assert not step_once(key, at(0), first - 1).spike.open


def test_no_second_alert_while_a_spike_lasts() -> None:
    key, _ = steps([500], warm(20))
    assert key.state is not None
    assert key.state.spike.open
    assert detector.early_alert(key.state, key.rhythm, at(1), 500) is None


def test_no_alert_in_the_warm_up() -> None:
    key, _ = steps([1, 1, 1])
    assert detector.early_alert(key.state, key.rhythm, START_US + 3 * WINDOW_US, 1000) is None


def test_rows_are_named_timed_and_sorted() -> None:
    episode = Episode("dip", START_US, START_US + WINDOW_US, 3, 12.345, 6.789)
    row = detector.name_anomaly("page", "/a", episode, -14400)
    assert row == detector.Anomaly(
        "page", "/a", "dip", "1970-01-04T20:00:00-04:00", "1970-01-04T20:05:00-04:00", 3, 12.3, 6.79, False
    )
    site = detector.name_anomaly("site", "", episode, -14400)
    later = detector.name_anomaly("site", "", Episode("dip", START_US + 1_000_000, 0, 0, 0.0, 0.0), -14400)
    assert detector.sort_anomalies([later, site, row]) == [row, site, later]


def test_evidence_grows_with_what_it_is_for() -> None:
    due = model.Forecast(10.0, 1.0, 0.0, 10.0)
    spikes = [evidence("spike", n, due) for n in range(50)]
    dips = [evidence("dip", n, due) for n in range(50)]
    assert spikes == sorted(spikes)
    assert dips == sorted(dips, reverse=True)
    assert spikes[10] < 0 > dips[10]
