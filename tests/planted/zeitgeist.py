"""Bugs of Zeitgeist: its detector learns what it must not, or misses what it must tell.

It is an example and no part of what is simulated, so that only its own tests notice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from examples.zeitgeist import detector, model, noise, report, silence
from examples.zeitgeist.model import Rhythm, Traffic
from tests.planted import Patches, only

DETECTOR = "tests/unit/zeitgeist/test_detector.py"
BURSTY = "tests/unit/zeitgeist/test_bursty.py"
DETECTION = "tests/unit/zeitgeist/test_detection.py::test_silences_shorter_than_a_window_are_found_at_full_traffic"
REPORT = "tests/unit/zeitgeist/test_report.py"


@only(DETECTOR)
def outage_is_learned() -> Patches:
    """An outage teaches the model that nobody comes."""

    def learned(traffic: Traffic, rhythm: Rhythm) -> tuple[Traffic, Rhythm]:
        return model.learn(traffic, rhythm, 0, model.forecast(traffic, rhythm, traffic.next_us), False)

    return {(model, "stand_still"): learned}


@only(DETECTOR)
def open_at_the_end_is_over() -> Patches:
    """An anomaly that goes on when the log ends is told as one that is over."""
    original = detector._open_episodes
    return {(detector, "_open_episodes"): lambda state, is_open: original(state, False)}


@only(DETECTOR)
def silence_without_a_look() -> Patches:
    """Empty windows are passed in one step also where their silence is telling."""
    return {(detector, "_is_sparse"): lambda traffic, rhythm: True}


@only(f"{BURSTY}::test_the_score_on_series_that_no_constant_was_set_with")
def noise_is_assumed() -> Patches:
    """The noise of a key is assumed, and not learned from its past."""
    return {(noise, "level"): lambda tail, first_us, at_us: 0.0}


@only(f"{BURSTY}::test_one_anomaly_does_not_make_the_next_one_normal")
def one_event_becomes_normal() -> Patches:
    """A single anomaly raises what counts as normal for its key without a limit."""
    return {(noise, "LARGEST_EXCESS"): math.inf}


@only(DETECTION)
def short_silence_missed() -> Patches:
    """A silence that is shorter than a window is no dip."""

    def listen(hush: Any, start_us: int, due: Any, slots: Sequence[int]) -> tuple[Any, list[Any]]:
        return original(hush, start_us, due, slots)[0], []

    original = silence.listen
    return {(silence, "listen"): listen}


@only(f"{REPORT}::test_each_key_is_walked_once")
def model_walked_for_each_picture() -> Patches:
    """The report walks a key's windows once for each of its anomalies."""
    return {(report, "cache"): lambda walk: walk}


@only(f"{REPORT}::test_every_day_is_listed_with_its_alarms")
def quiet_days_left_out() -> Patches:
    """The report lists only the days that had an alarm."""
    original = report._days
    return {(report, "_days"): lambda facts, rows: [day for day in original(facts, rows) if any(day[1])]}
