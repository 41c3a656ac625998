"""The model forecasts what it was taught, and forgets what it should."""

import random
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest

from examples.zeitgeist import model
from examples.zeitgeist.model import DAY_WINDOWS, HOUR_US, HOUR_WINDOWS, WINDOW_US, Traffic

MONDAY_US = 4 * model.DAY_US
"""Monday 5 January 1970, 00:00 UTC."""


def taught(counts: Iterable[int], start_us: int = MONDAY_US) -> Traffic:
    traffic: Traffic | None = None
    for at, count in enumerate(counts):
        if traffic is None:
            traffic = model.begin(start_us + at * WINDOW_US, count)
        else:
            traffic = model.learn(traffic, count, model.forecast(traffic, traffic.next_us), hurry=False)
    assert traffic is not None
    return traffic


def day_and_night(windows: int, start_us: int = MONDAY_US) -> list[int]:
    """100 requests per window from 12 to 20 hours UTC, 20 otherwise."""
    return [100 if 12 <= (start_us + at * WINDOW_US) // HOUR_US % 24 < 20 else 20 for at in range(windows)]


def next_mean(traffic: Traffic) -> float:
    return model.forecast(traffic, traffic.next_us).mean


def test_steady_traffic_is_expected_to_go_on() -> None:
    assert next_mean(taught([50] * HOUR_WINDOWS)) == pytest.approx(50, rel=0.01)


def test_on_the_first_day_the_rhythm_is_unknown() -> None:
    traffic = taught([50] * (DAY_WINDOWS - 1))
    assert model.forecast(traffic, traffic.next_us).said == 0  # the last hours are not yet learned
    assert model.forecast(traffic, traffic.next_us + HOUR_US).said == 50  # midnight: seen a day ago


def test_the_second_day_expects_the_rise_of_the_first() -> None:
    traffic = taught(day_and_night(DAY_WINDOWS + 11 * HOUR_WINDOWS))
    later = model.forecast(traffic, MONDAY_US + 39 * HOUR_US)
    assert traffic.recent == pytest.approx(20, rel=0.05)
    assert later.mean == pytest.approx(100, rel=0.1)
    assert later.doubt < 0.02


def test_the_rhythm_is_interpolated_between_hours() -> None:
    traffic = taught(day_and_night(DAY_WINDOWS))
    edge = MONDAY_US + 12 * HOUR_US
    assert 40 < model.rhythm_at(traffic, edge) < 80
    assert model.rhythm_at(traffic, edge - HOUR_US) < model.rhythm_at(traffic, edge)


def test_a_surge_does_not_count_twice_when_its_hour_ends() -> None:
    calm = taught([20] * (2 * DAY_WINDOWS))
    surge = calm
    means = []
    for _ in range(2 * HOUR_WINDOWS):
        due = model.forecast(surge, surge.next_us)
        means.append(due.mean)
        surge = model.learn(surge, 200, due, hurry=True)
    assert max(after / before for before, after in pairwise(means)) < 1.1


def test_the_first_weekend_falls_back_on_the_last_hour() -> None:
    traffic = taught(day_and_night(5 * DAY_WINDOWS))
    saturday = model.forecast(traffic, MONDAY_US + 5 * model.DAY_US + 14 * HOUR_US)
    assert (saturday.said, saturday.mean) == (0, traffic.recent)
    assert saturday.doubt == model.CLOCK_ERROR


@pytest.mark.parametrize(("hours", "bucket"), [(0, 0), (23, 23), (24, 0), (5 * 24, 24), (6 * 24 + 23, 47)])
def test_buckets_tell_workdays_from_weekends(hours: int, bucket: int) -> None:
    assert model.bucket(MONDAY_US + hours * HOUR_US) == bucket


def test_the_spread_of_poisson_counts_is_one() -> None:
    dice = random.Random(1)
    counts = [sum(dice.random() < 0.1 for _ in range(200)) for _ in range(3 * DAY_WINDOWS)]
    assert model.spread(taught(counts)) == pytest.approx(1, abs=0.25)


def test_the_spread_of_counts_in_bunches_is_their_size() -> None:
    dice = random.Random(2)
    counts = [8 * sum(dice.random() < 0.1 for _ in range(200)) for _ in range(3 * DAY_WINDOWS)]
    assert model.spread(taught(counts)) == pytest.approx(8, rel=0.25)


def test_a_sparse_key_is_not_biased_by_clipping() -> None:
    dice = random.Random(3)
    counts = [int(dice.random() < 0.3) for _ in range(4 * DAY_WINDOWS)]
    traffic = taught([1, *counts])
    assert sum(traffic.rhythm) / sum(1 for day in traffic.days if day) == pytest.approx(0.3, abs=0.05)


def test_one_wild_window_teaches_little() -> None:
    calm = taught([50] * DAY_WINDOWS)
    wild = model.learn(calm, 5000, model.forecast(calm, calm.next_us), hurry=False)
    assert next_mean(wild) < 1.1 * next_mean(calm)
    assert model.spread(wild) < 1.5 * model.spread(calm)


@pytest.mark.parametrize("factor", [5, 0.2])
def test_a_lasting_change_is_followed_within_hours(factor: float) -> None:
    changed = taught([50] * DAY_WINDOWS + [int(50 * factor)] * 12 * HOUR_WINDOWS)
    assert changed.recent == pytest.approx(50 * factor, rel=0.2)


def in_turn(traffic: Traffic, done: Callable[[Traffic], bool]) -> int:
    """Windows without traffic until something is so."""
    for windows in range(20 * DAY_WINDOWS):
        if done(traffic):
            return windows
        traffic = model.learn(traffic, 0, model.forecast(traffic, traffic.next_us), hurry=False)
    raise AssertionError("never")


def test_a_key_seen_once_is_forgotten_in_an_hour() -> None:
    assert in_turn(taught([1]), model.is_spent) == model.FORGET_IDLE


def test_a_key_with_a_history_is_kept_for_days() -> None:
    assert in_turn(taught([10] * DAY_WINDOWS), model.is_spent) > 5 * DAY_WINDOWS
