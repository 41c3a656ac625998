"""The model forecasts what it was taught, and forgets what it should."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec
import pytest

from examples.zeitgeist import model
from examples.zeitgeist.model import DAY_WINDOWS, HOUR_US, HOUR_WINDOWS, WINDOW_US, Forecast, Rhythm, Traffic

MONDAY_US = 4 * model.DAY_US
"""Monday 5 January 1970, 00:00 UTC."""


class Known(msgspec.Struct, frozen=True):
    """What is known of a key."""

    traffic: Traffic
    rhythm: Rhythm = model.UNKNOWN

    def due(self, after_us: int = 0) -> Forecast:
        return model.forecast(self.traffic, self.rhythm, self.traffic.next_us + after_us)

    def learn(self, count: int, hurry: bool = False) -> Known:
        return Known(*model.learn(self.traffic, self.rhythm, count, self.due(), hurry))


def taught(counts: Iterable[int], start_us: int = MONDAY_US) -> Known:
    first, *others = counts
    known = Known(model.begin(start_us, first))
    for count in others:
        known = known.learn(count)
    return known


def day_and_night(windows: int, start_us: int = MONDAY_US) -> list[int]:
    """100 requests per window from 12 to 20 hours UTC, 20 otherwise."""
    return [100 if 12 <= (start_us + at * WINDOW_US) // HOUR_US % 24 < 20 else 20 for at in range(windows)]


def next_mean(known: Known) -> float:
    return known.due().mean


def test_steady_traffic_is_expected_to_go_on() -> None:
    assert next_mean(taught([50] * 3 * DAY_WINDOWS)) == pytest.approx(50)


def test_on_the_first_day_the_rhythm_is_unknown() -> None:
    known = taught([50] * (DAY_WINDOWS - 1))
    assert known.due().said == 0  # the last hours are not yet learned
    assert known.due(HOUR_US).said == 50  # midnight: seen a day ago


def test_the_second_day_expects_the_rise_of_the_first() -> None:
    known = taught(day_and_night(DAY_WINDOWS + 11 * HOUR_WINDOWS))
    later = model.forecast(known.traffic, known.rhythm, MONDAY_US + 39 * HOUR_US)
    assert known.traffic.recent == pytest.approx(20, rel=0.05)
    assert later.mean == pytest.approx(100, rel=0.1)
    assert later.doubt < 0.02


def test_the_rhythm_is_interpolated_between_hours() -> None:
    rhythm = taught(day_and_night(DAY_WINDOWS)).rhythm
    edge = MONDAY_US + 12 * HOUR_US
    assert 40 < model.rhythm_at(rhythm, edge) < 80
    assert model.rhythm_at(rhythm, edge - HOUR_US) < model.rhythm_at(rhythm, edge)


def test_the_rhythm_changes_once_an_hour() -> None:
    known = taught([50] * DAY_WINDOWS)
    changed = 0
    for _ in range(DAY_WINDOWS):
        after = known.learn(60)
        changed += after.rhythm is not known.rhythm
        known = after
    assert changed == 24


def test_a_surge_does_not_count_twice_when_its_hour_ends() -> None:
    surge = taught([20] * (2 * DAY_WINDOWS))
    means = []
    for _ in range(2 * HOUR_WINDOWS):
        means.append(next_mean(surge))
        surge = surge.learn(200, hurry=True)
    assert max(after / before for before, after in pairwise(means)) < 1.1


def test_the_first_weekend_falls_back_on_the_last_hour() -> None:
    known = taught(day_and_night(5 * DAY_WINDOWS))
    saturday = model.forecast(known.traffic, known.rhythm, MONDAY_US + 5 * model.DAY_US + 14 * HOUR_US)
    assert (saturday.said, saturday.mean) == (0, known.traffic.recent)
    assert saturday.doubt == model.CLOCK_ERROR


@pytest.mark.parametrize(("hours", "bucket"), [(0, 0), (23, 23), (24, 0), (5 * 24, 24), (6 * 24 + 23, 47)])
def test_buckets_tell_workdays_from_weekends(hours: int, bucket: int) -> None:
    assert model.bucket(MONDAY_US + hours * HOUR_US) == bucket


def test_the_spread_of_poisson_counts_is_one() -> None:
    dice = random.Random(1)
    counts = [sum(dice.random() < 0.1 for _ in range(200)) for _ in range(3 * DAY_WINDOWS)]
    assert model.spread(taught(counts).traffic) == pytest.approx(1, abs=0.25)


def test_the_spread_of_counts_in_bunches_is_their_size() -> None:
    dice = random.Random(2)
    counts = [8 * sum(dice.random() < 0.1 for _ in range(200)) for _ in range(3 * DAY_WINDOWS)]
    assert model.spread(taught(counts).traffic) == pytest.approx(8, rel=0.25)


def test_a_sparse_key_is_not_biased_by_clipping() -> None:
    dice = random.Random(3)
    counts = [int(dice.random() < 0.3) for _ in range(4 * DAY_WINDOWS)]
    rhythm = taught([1, *counts]).rhythm
    assert sum(rhythm.means) / sum(1 for day in rhythm.days if day) == pytest.approx(0.3, abs=0.05)


def test_one_wild_window_teaches_little() -> None:
    calm = taught([50] * DAY_WINDOWS)
    wild = calm.learn(5000)
    assert next_mean(wild) < 1.1 * next_mean(calm)
    assert model.spread(wild.traffic) < 1.5 * model.spread(calm.traffic)


@pytest.mark.parametrize("factor", [5, 0.2])
def test_a_lasting_change_is_followed_within_hours(factor: float) -> None:
    changed = taught([50] * DAY_WINDOWS + [int(50 * factor)] * 12 * HOUR_WINDOWS)
    assert changed.traffic.recent == pytest.approx(50 * factor, rel=0.2)


@pytest.mark.parametrize("windows", range(1, HOUR_WINDOWS + 1))
@pytest.mark.parametrize("history", [[1], [1, 0, 2], [1, 0, 0, 3] * DAY_WINDOWS])
def test_silence_is_learned_at_once_as_window_by_window(history: list[int], windows: int) -> None:
    known = one_by_one = taught([*history, *[0] * (-len(history) % HOUR_WINDOWS)])
    for _ in range(windows):
        one_by_one = one_by_one.learn(0)
    traffic, rhythm = model.pass_silence(known.traffic, known.rhythm, windows)
    assert rhythm == one_by_one.rhythm
    for name in Traffic.__struct_fields__:
        had, wanted = getattr(traffic, name), getattr(one_by_one.traffic, name)
        assert had == pytest.approx(wanted, rel=0.02), name


def in_turn(known: Known, done: Callable[[Traffic], bool]) -> int:
    """Windows without traffic until something is so."""
    for windows in range(20 * DAY_WINDOWS):
        if done(known.traffic):
            return windows
        known = known.learn(0)
    raise AssertionError("never")


def test_a_key_seen_once_is_forgotten_in_an_hour() -> None:
    assert in_turn(taught([1]), model.is_spent) == model.FORGET_IDLE


def test_a_key_with_a_history_is_kept_for_days() -> None:
    assert in_turn(taught([10] * DAY_WINDOWS), model.is_spent) > 5 * DAY_WINDOWS
