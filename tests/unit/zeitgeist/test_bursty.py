"""Noise is learned: counts that come in bursts raise few alarms, and what is out of the ordinary is still found."""

import pytest

from examples.zeitgeist import bursty, detector, noise
from examples.zeitgeist.bursty import HELD_OUT
from examples.zeitgeist.evidence import ALARM
from examples.zeitgeist.model import DAY_US
from examples.zeitgeist.noise import NO_TAIL, Tail

SEEDS = range(HELD_OUT, HELD_OUT + 12)


@pytest.mark.slow
def test_the_score_on_series_that_no_constant_was_set_with() -> None:
    score = bursty.judge(SEEDS)
    assert score.points >= 60
    assert score.false_alarms / score.days <= 0.4


@pytest.mark.slow
def test_noise_that_is_assumed_instead_of_learned_scores_far_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the test above would not tell a detector that learns from one that does not."""
    monkeypatch.setattr(detector, "bar", lambda *_: ALARM)
    assert bursty.judge(SEEDS).points < 40


def test_a_series_is_drawn_from_its_seed_alone() -> None:
    assert bursty.draw(3) == bursty.draw(3) != bursty.draw(4)


def test_doing_nothing_scores_0_and_everything_100() -> None:
    assert bursty.Score(0, 33, 0, 550).points == 0
    assert bursty.Score(33, 33, 0, 550).points == 100
    assert bursty.Score(32, 33, 764, 550).points == pytest.approx(-30.4, abs=0.1)


def peaks(nats: float, days: int, a_day: int) -> Tail:
    tail = NO_TAIL
    for at in range(days * a_day):
        tail = noise.remember(tail, nats, at * DAY_US // a_day)
    return tail


def test_without_a_past_the_level_is_below_the_alarm() -> None:
    assert noise.level(NO_TAIL, 0, 0) < ALARM
    assert noise.level(peaks(4.0, 10, 1), 0, 10 * DAY_US) < ALARM


def test_bursts_of_every_day_are_no_news() -> None:
    assert noise.level(peaks(60.0, 10, 4), 0, 10 * DAY_US) > 60


def test_one_anomaly_does_not_make_the_next_one_normal() -> None:
    calm = peaks(4.0, 10, 1)
    wild = noise.remember(calm, 10_000.0, 10 * DAY_US)
    assert noise.level(wild, 0, 10 * DAY_US) < 1.7 * noise.level(calm, 0, 10 * DAY_US)


def test_what_was_wild_is_forgotten() -> None:
    tail = peaks(60.0, 10, 4)
    assert noise.level(tail, 0, 80 * DAY_US) < noise.level(tail, 0, 10 * DAY_US) / 4
