"""The quality of the detector on the carried slice: launch day, quiet days, seeded disturbances."""

import random
import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest

from examples.zeitgeist import evaluate
from examples.zeitgeist.detector import Anomaly, Scope
from examples.zeitgeist.evaluate import SITE, Counts, Key, Trial
from examples.zeitgeist.founded import unfounded_dips
from examples.zeitgeist.logline import LoggedRequest
from examples.zeitgeist.model import HOUR_US, WINDOW_US
from examples.zeitgeist.silence import SLOT_US
from tests.effort import PROFILE

SLICE: Final = Path(evaluate.__file__).parent / "data" / "nasa-1995-07-11..14.log.gz"
OFFSET_S: Final = -14400
LAUNCH_PAGES: Final = ("/shuttle/countdown/", "/shuttle/countdown/liftoff.html")
LIVE_VIDEO: Final = re.compile(r"/shuttle/countdown/video/livevideo.*\.(gif|jpeg)")

Slots = dict[Key, Counts]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def parsed() -> list[LoggedRequest]:
    parsed = [line for line in evaluate.read_log(SLICE) if isinstance(line, LoggedRequest)]
    assert len(parsed) == 391_249
    return parsed


@pytest.fixture(scope="module")
def slots(parsed: list[LoggedRequest]) -> Slots:
    return evaluate.count_slots(parsed)


@pytest.fixture(scope="module")
def anomalies(slots: Slots) -> list[Anomaly]:
    return evaluate.anomalies_of(slots, OFFSET_S)


def local(day: int, clock: str) -> datetime:
    return datetime.fromisoformat(f"1995-07-{day:02}T{clock}:00-04:00")


def overlapping(rows: list[Anomaly], start: datetime, end: datetime) -> list[Anomaly]:
    return [row for row in rows if datetime.fromisoformat(row.start) < end and datetime.fromisoformat(row.end) > start]


def launch_spikes(rows: list[Anomaly], scope: Scope) -> list[Anomaly]:
    near = overlapping(rows, local(13, "07:00"), local(13, "12:00"))
    return [row for row in near if row.scope == scope and row.kind == "spike"]


def test_the_site_spikes_on_launch_day(anomalies: list[Anomaly]) -> None:
    spikes = launch_spikes(anomalies, "site")
    assert spikes
    assert max(spikes, key=lambda row: row.score).observed > 20_000


def test_launch_pages_spike_on_launch_day(anomalies: list[Anomaly]) -> None:
    pages = {row.key for row in launch_spikes(anomalies, "page")}
    assert set(LAUNCH_PAGES) <= pages
    assert any(LIVE_VIDEO.fullmatch(page) for page in pages)


def test_the_site_dips_in_the_silence(anomalies: list[Anomaly]) -> None:
    silence = overlapping(anomalies, local(13, "19:50"), local(13, "20:10"))
    (dip,) = [row for row in silence if row.scope == "site"]
    assert dip.kind == "dip"
    assert local(13, "19:00") <= datetime.fromisoformat(dip.start) <= local(13, "19:50")


def test_quiet_days_stay_quiet(anomalies: list[Anomaly]) -> None:
    days = evaluate.alarms_per_day(anomalies)
    quiet = [days.get(f"1995-07-{day}", Counter[str]()) for day in (11, 12)]
    assert sum(day["site spike"] + day["site dip"] for day in quiet) <= 3
    assert max(day["page spike"] + day["page dip"] for day in quiet) <= 40


def test_the_log_bears_out_every_dip_of_the_site(anomalies: list[Anomaly], parsed: list[LoggedRequest]) -> None:
    """At most 0.2 false ones a day: on four days, none."""
    assert sum(row.scope == "site" and row.kind == "dip" for row in anomalies) == 7
    assert unfounded_dips(anomalies, sorted(row.timestamp_us for row in parsed)) == []


def test_a_cold_start_is_no_anomaly(anomalies: list[Anomaly]) -> None:
    assert [row for row in anomalies if row.start < "1995-07-11T06:00"] == []


def test_order_of_arrival_changes_nothing(anomalies: list[Anomaly], parsed: list[LoggedRequest]) -> None:
    rows = [*parsed]
    random.Random(7).shuffle(rows)
    pages = {row.key for row in anomalies[::20] if row.scope == "page"}
    some = [row for row in rows if row.path in pages]
    ends = [max(rows, key=lambda row: row.timestamp_us)]  # so that the input ends when it did
    found = evaluate.expected_anomalies([*some, *ends], OFFSET_S)
    expected = [row for row in anomalies if row.scope == "page" and row.key in pages]
    assert [row for row in found if row.scope == "page" and row.key in pages] == expected


@pytest.mark.parametrize("scope", ["site", "page"])
def test_disturbances_are_found(slots: Slots, scope: Scope) -> None:
    trials = 200 if PROFILE == "search" else 80
    results = evaluate.run_trials(slots, evaluate.draw_trials(slots, scope, trials))
    for found, made in results.values():
        assert (made, found / made) >= (trials // 2, 0.9)


def test_silences_shorter_than_a_window_are_found_at_full_traffic(slots: Slots) -> None:
    dice = random.Random(60)
    counts, end_us = slots[SITE], evaluate.end_of(slots)
    starts_us = min(counts)
    rate_of = evaluate.windows_of(counts)
    trials = 92 if PROFILE == "search" else 40
    missed = made = 0
    while made < trials and missed <= 0.05 * trials:
        at_us = dice.randrange(starts_us + 8 * HOUR_US, end_us - HOUR_US, 1_000_000)
        until_us = at_us + dice.randrange(60, 285) * 1_000_000
        if rate_of[at_us // WINDOW_US * WINDOW_US] < 250:
            continue
        # What a slot has lost of its requests is what the silence covers of it.
        silent = {
            at: round(n * (1 - max(0, min(at + SLOT_US, until_us) - max(at, at_us)) / SLOT_US))
            for at, n in counts.items()
        }
        kept = {at: n for at, n in silent.items() if n and at < until_us + HOUR_US}
        made += 1
        missed += not any(
            episode.kind == "dip" and episode.start_us < until_us and episode.end_us > at_us
            for episode in evaluate.episodes_of(kept, until_us + HOUR_US, "site")
        )
    assert missed <= 0.05 * trials


def test_suppression_has_ended_six_hours_into_the_data(slots: Slots) -> None:
    begins_us = min(slots[SITE]) // WINDOW_US * WINDOW_US
    for late_us in range(6 * HOUR_US, 9 * HOUR_US, HOUR_US // 2):
        assert evaluate.is_found(slots[SITE], Trial(SITE, begins_us + late_us, "spike"))
        assert evaluate.is_found(slots[SITE], Trial(SITE, begins_us + late_us, "dip"))
