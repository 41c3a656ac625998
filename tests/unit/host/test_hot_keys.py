"""Hot keys: shares are never too high, hot ones are found whatever comes beside them, and memory is bounded."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from millwheel import limits
from millwheel.cluster import HotKey
from millwheel.host.hot_keys import HotKeys, KeyCounts
from millwheel.ids import IntervalId

ONE, TWO = IntervalId(1), IntervalId(2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bundle", [1, 7, 500])
def test_a_share_is_too_low_by_one_in_the_room_at_most_and_never_too_high(seed: int, bundle: int) -> None:
    dice = random.Random(seed)
    keys = [f"h{dice.randrange(4)}" if dice.random() < 0.5 else f"k{dice.randrange(5_000)}" for _ in range(20_000)]
    counts = KeyCounts(limits.HOT_KEY_ROOM)
    for first in range(0, len(keys), bundle):
        counts.add(keys[first : first + bundle])
    truth = Counter(keys)
    found = dict(counts.shares())
    assert found.keys() == {"h0", "h1", "h2", "h3"}
    for key, permille in found.items():
        true = truth[key] * 1_000 / len(keys)
        assert true - 1_000 / limits.HOT_KEY_ROOM - 1 <= permille <= true


@pytest.mark.parametrize("others", range(4, 12))
def test_no_share_becomes_larger_when_counts_fade(others: int) -> None:
    counts = KeyCounts(1)
    counts.add([*"a" * 12, *"b" * others, *"c" * others])  # "c" is left out, and nobody knows how often it came
    counts.add("d")
    before = dict(counts.shares())
    counts.fade()
    for key, permille in counts.shares():
        assert permille <= before[key]


@pytest.mark.parametrize(("seed", "fades"), [(1, 4), (2, 4)])
def test_a_key_that_becomes_hot_late_is_found_also_after_counts_have_faded(seed: int, fades: int) -> None:
    # Those that were there first have counts by then that it never reaches between two times at which the smallest leave.
    dice, counts, truth, total = random.Random(seed), KeyCounts(limits.HOT_KEY_ROOM), Counter[str](), 0.0
    warm = 5 * limits.HOT_KEY_ROOM
    for share in (0.0, 0.3):
        for _ in range(30_000):
            key = "late" if dice.random() < share else f"k{dice.randrange(warm)}"
            counts.add([key])
            truth[key] += 1
            total += 1
    for _ in range(fades):
        counts.fade()
    ((key, permille), *_) = counts.shares()
    true = truth["late"] * 1_000 / total
    assert key == "late"
    assert true - 1_000 / limits.HOT_KEY_ROOM - 2 <= permille <= true


def test_keys_that_all_come_once_are_not_hot_and_take_bounded_room() -> None:
    counts = KeyCounts(limits.HOT_KEY_ROOM)
    for first in range(0, 100_000, 1_000):
        counts.add([str(number) for number in range(first, first + 1_000)])
    assert counts.shares() == []
    assert len(counts._counts) <= 2 * limits.HOT_KEY_ROOM


def test_what_was_hot_long_ago_is_not_hot_any_more() -> None:
    counts = KeyCounts(limits.HOT_KEY_ROOM)
    counts.add(["old"] * 1_000)
    for _ in range(5):
        counts.fade()
        counts.add(["new"] * 1_000)
    ((first, _), *others) = counts.shares()
    assert first == "new"
    assert others == []


def sent(hot: HotKeys, interval: IntervalId, keys: list[str], bundles: int) -> None:
    for _ in range(bundles):
        hot.came(interval, keys)


def test_a_worker_reports_the_hot_keys_of_its_intervals_and_forgets_others() -> None:
    hot = HotKeys()
    sent(hot, ONE, ["a"] * 60 + ["b"] * 30 + [f"k{n}" for n in range(10)], 10 * limits.HOT_KEY_BUNDLES)
    sent(hot, TWO, [f"k{n}" for n in range(100)], 10 * limits.HOT_KEY_BUNDLES)
    assert hot.report([ONE, TWO]) == (HotKey(ONE, "a", 600), HotKey(ONE, "b", 300))
    assert hot.report([TWO]) == ()
    assert hot.report([ONE, TWO]) == ()


def test_of_few_records_nothing_is_said_and_they_are_kept_for_the_next_report() -> None:
    hot = HotKeys()
    half = ["a"] * (limits.HOT_KEY_LEAST_RECORDS // 2)
    sent(hot, ONE, half, 1)
    assert hot.report([ONE]) == ()
    sent(hot, ONE, half, limits.HOT_KEY_BUNDLES)
    assert hot.report([ONE]) == (HotKey(ONE, "a", 1_000),)


def test_bundles_in_between_are_not_looked_at() -> None:
    hot = HotKeys()
    for number in range(limits.HOT_KEY_BUNDLES * 3):
        hot.came(ONE, ["counted"] * 100 if number % limits.HOT_KEY_BUNDLES == 0 else ["not"] * 10_000)
    assert hot.report([ONE]) == (HotKey(ONE, "counted", 1_000),)


def test_keys_that_come_equally_often_are_named_in_the_order_of_their_names() -> None:
    counts = KeyCounts(limits.HOT_KEY_ROOM)
    counts.add(["b", "c", "a"] * 100)
    assert [key for key, _ in counts.shares()] == ["a", "b", "c"]
