"""The watermark authority: minima, never back, persisted before anybody hears."""

from __future__ import annotations

import itertools
import random

import pytest

from millwheel.core.authority import Authority
from millwheel.core.loop_rounds import Floor
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME


def authority(**persisted: int) -> Authority:
    found = Authority({"a": ["source:s"], "b": ["a", "source:t"]}, persisted)
    found.expect("source:s", IntervalId(1))
    found.expect("a", IntervalId(2))
    found.expect("a", IntervalId(3))
    return found


def test_an_interval_that_has_not_reported_holds_its_computation() -> None:
    found = authority()
    found.report("a", IntervalId(2), 50)
    assert found.changes() == {}
    found.report("a", IntervalId(3), 40)
    assert found.changes() == {"a": 40}


def test_a_value_is_visible_only_when_adopted() -> None:
    found = authority()
    found.bound("source:s", MAX_TIME)
    found.report("source:s", IntervalId(1), 10)
    changed = found.changes()
    assert changed == {"source:s": 10}
    assert found.input_of("a") == MIN_TIME
    assert found.adopt(changed) == {"a": 10}
    assert (found.input_of("a"), found.value("source:s")) == (10, 10)


def looped(**persisted: int) -> Authority:
    """a sends to b, and b back to a."""
    senders = {"a": ["source:s", "loop:a"], "b": ["a"], "c": ["b"]}
    found = Authority(senders, {**persisted, "source:s": 30}, {"loop:a": ("a", "b")})
    for name, interval in (("a", 1), ("b", 2), ("c", 3)):
        found.expect(name, IntervalId(interval), Sequencer(10 * interval))
    return found


LOOPED = {IntervalId(1): Sequencer(10), IntervalId(2): Sequencer(20)}


def test_the_floor_of_a_loop_bounds_its_head_in_the_place_of_who_sends_back() -> None:
    found = looped()
    assert (found.outside("loop:a"), found.owners_of_loop("loop:a")) == (30, LOOPED)
    assert found.input_of("a") == MIN_TIME
    found.floor("loop:a", Floor(20, LOOPED))
    changed = found.changes()
    assert (changed, found.owners("loop:a")) == ({"loop:a": 20}, LOOPED)
    assert found.adopt(changed) == {"a": 20}
    assert found.value("b") == MIN_TIME, "the others rise by their reports"


def test_a_floor_that_was_not_persisted_waits_for_the_next_round() -> None:
    found = looped()
    found.floor("loop:a", Floor(20, LOOPED))
    assert found.changes() == {"loop:a": 20}
    found.refused("loop:a")
    assert (found.changed(), found.changes()) == (False, {})
    found.floor("loop:a", Floor(15, LOOPED))
    assert found.changes() == {"loop:a": 15}


def test_a_loop_with_an_interval_that_nobody_owns_has_no_owners() -> None:
    found = looped()
    found.expect("b", IntervalId(4))
    assert found.owners_of_loop("loop:a") == {}


def test_a_loop_with_a_member_of_which_nothing_is_known_has_no_owners() -> None:
    found = Authority({"a": ["loop:a"], "b": ["a"]}, {}, {"loop:a": ("a", "b")})
    found.expect("a", IntervalId(1), Sequencer(10))
    assert found.owners_of_loop("loop:a") == {}


def test_productions_of_an_earlier_version_bound_a_loop_from_outside_too() -> None:
    found = looped(c=7)
    found.unsettled("c", IntervalId(3), ["b"])
    assert found.outside("loop:a") == 7
    found.unsettled("b", IntervalId(2), ["a"])
    assert found.outside("loop:a") == 7, "those of a member are in its answer"


def test_an_input_is_the_minimum_over_all_senders() -> None:
    found = authority()
    found.bound("source:t", 5)
    assert found.adopt({"a": 30}) == {}
    assert found.adopt(found.changes()) == {"b": 5}
    found.bound("source:t", 100)
    assert found.adopt(found.changes()) == {"b": 30}


def test_one_finished_source_does_not_end_time_while_another_is_idle() -> None:
    found = authority(a=7)
    found.bound("source:t", MAX_TIME)
    found.adopt(found.changes())
    assert found.input_of("b") == 7


def test_a_source_is_held_by_what_it_has_not_discovered() -> None:
    found = authority()
    found.bound("source:s", 20)
    found.report("source:s", IntervalId(1), 90)
    assert found.changes() == {"source:s": 20}


def test_what_waits_for_its_turn_does_not_hold_before() -> None:
    found = authority()
    found.expect("source:s", IntervalId(4))
    found.bound("source:s", 20)
    found.report("source:s", IntervalId(1), 15)
    assert found.changes() == {}
    found.excuse("source:s", IntervalId(4))
    found.report("source:s", IntervalId(1), 16)
    found.adopt(found.changes())
    assert found.value("source:s") == 16
    found.expect("source:s", IntervalId(4))
    found.report("source:s", IntervalId(1), MAX_TIME)
    assert found.changes() == {}
    found.report("source:s", IntervalId(4), 18)
    assert found.changes() == {"source:s": 18}


def test_what_an_earlier_version_has_left_is_waited_for_until_it_is_settled() -> None:
    found = Authority({"a": ["source:s"], "b": ["source:t"]}, {"a": 10, "source:t": 90})
    found.unsettled("a", IntervalId(2), {"b"})
    assert found.input_of("b") == 10
    assert found.settle(IntervalId(3)) == {}
    assert found.settle(IntervalId(2)) == {"b": 90}


@pytest.mark.parametrize("persisted", [*itertools.permutations((10, 20, 30, 40))])
def test_an_input_is_the_minimum_over_senders_of_now_and_of_before(persisted: tuple[int, ...]) -> None:
    """Intervals of two computations have productions for one to which this version does not send them."""
    values = dict(zip(["a", "c", "source:s", "source:t"], persisted, strict=True))
    found = Authority({"a": [], "b": ["source:s", "source:t"], "c": ["a"]}, values)
    counting = {"source:s", "source:t", "a", "c"}
    for interval, name in enumerate(("a", "a", "c")):
        found.unsettled(name, IntervalId(interval), {"b"})
    for interval, left in enumerate((counting, counting - {"a"}, counting - {"a", "c"})):
        before = found.input_of("b")
        assert before == found.inputs()["b"] == min(values[name] for name in counting)
        after = min(values[name] for name in left)
        assert found.settle(IntervalId(interval)) == ({"b": after} if after > before else {})
        counting = left
    assert found.input_of("b") == min(values["source:s"], values["source:t"])
    assert found.input_of("c") == values["a"], "what was left for others does not hold it"


def test_nothing_goes_back() -> None:
    dice, found, last = random.Random(5), authority(a=3), dict[str, int]()
    for _ in range(2_000):
        found.report("a", IntervalId(dice.choice((2, 3))), dice.randrange(-10, 1_000))
        found.report("source:s", IntervalId(1), dice.randrange(-10, 1_000))
        found.bound("source:t", dice.randrange(1_000))
        if dice.random() < 0.5:
            continue
        found.adopt(found.changes())
        for name in ("a", "source:s", "source:t"):
            assert found.value(name) >= last.get(name, MIN_TIME)
            last[name] = found.value(name)
        assert found.value("a") <= min(found.intervals("a").values()) or found.value("a") == 3
    assert found.input_of("b") == min(last["a"], last["source:t"])


class Model:
    """The authority said plainly: what each value may be, from all that was reported."""

    def __init__(self) -> None:
        self.reported: dict[str, dict[int, int]] = {"a": {}, "source:s": {}, "source:t": {}}
        self.bounds: dict[str, int] = {}
        self.owners: dict[str, dict[int, int]] = {"a": {}, "source:s": {}, "source:t": {}}
        self.values: dict[str, int] = {}

    def computed(self, name: str) -> int:
        bound = self.bounds.get(name)
        if bound is None and name.startswith("source:"):
            return MIN_TIME  # what it has not discovered may be older
        least = min(self.reported[name].values(), default=MIN_TIME if bound is None else bound)
        return least if bound is None else min(least, bound)

    def rests_on(self, name: str) -> dict[int, int]:
        found = dict(self.owners[name])
        return found | self.owners["a"] if name == "source:s" else found


@pytest.mark.parametrize("seed", range(20))
def test_a_value_is_the_minimum_of_what_counts_and_rests_on_its_owners(seed: int) -> None:
    dice, model = random.Random(seed), Model()
    found = Authority({"a": ["source:s"], "b": ["a", "source:t"]}, {})
    for step in range(400):
        name = dice.choice([*model.reported])
        interval, value = dice.choice([1, 2, 3]), dice.choice([dice.randrange(-10, 20 + step), MAX_TIME])
        known, owners = model.reported[name], model.owners[name]
        match dice.randrange(8):
            case 0:
                found.expect(name, IntervalId(interval), Sequencer(step))
                known.setdefault(interval, MIN_TIME)
                owners[interval] = step
            case 1 | 2 | 3 if interval in known:
                found.report(name, IntervalId(interval), value)
                if value > known[interval]:
                    known[interval] = value
                    if value == MAX_TIME and name.startswith("source:"):
                        owners.pop(interval, None)  # its end is durable, whoever owns it
            case 4 if name != "a":
                found.bound(name, value)
                model.bounds[name] = max(value, model.bounds.get(name, MIN_TIME))
            case 5:
                found.retire(name, IntervalId(interval))
                known.pop(interval, None)
                owners.pop(interval, None)
            case 6 if interval in known:
                found.hold(name, IntervalId(interval))
                known[interval] = MIN_TIME
            case _:
                pass
        changed = found.changes()
        assert all(found.owners(each) == model.rests_on(each) for each in model.reported)
        for each in changed:
            assert changed[each] == model.computed(each) > model.values.get(each, MIN_TIME)
        model.values |= {each: max(model.values.get(each, MIN_TIME), model.computed(each)) for each in model.reported}
        risen = found.adopt(changed)
        inputs = {"a": model.values["source:s"], "b": min(model.values["a"], model.values["source:t"])}
        assert found.inputs() == inputs
        assert all(inputs[each] == risen[each] for each in risen)
        assert {each: found.value(each) for each in model.values} == model.values


def partitions(shares: dict[str, int], *values: int) -> Authority:
    """A source with so many partitions, and what each has reported."""
    found = Authority({"a": ["source:s"]}, {}, {}, shares)
    found.bound("source:s", MAX_TIME)
    for number, value in enumerate(values):
        found.expect("source:s", IntervalId(number))
        found.report("source:s", IntervalId(number), value)
    return found


def test_a_few_partitions_that_are_behind_do_not_hold_a_source_with_a_share() -> None:
    rest = [*range(50, 60)]
    assert partitions({}, 7, *rest[1:]).changes() == {"source:s": 7}
    assert partitions({"source:s": 900_000}, 7, *rest[1:]).changes() == {"source:s": 51}
    assert partitions({"source:s": 900_000}, 7, *rest[2:]).changes() == {"source:s": 7}, "nine are too few"
    assert partitions({"source:s": 800_000}, 7, 8, *rest[2:]).changes() == {"source:s": 52}
    assert partitions({"source:t": 800_000}, 7, 8, *rest[2:]).changes() == {"source:s": 7}


def test_a_source_with_a_share_is_not_at_its_end_before_its_last_partition_is() -> None:
    found = partitions({"source:s": 500_000}, 7, MAX_TIME, MAX_TIME, MAX_TIME)
    assert found.changes() == {"source:s": 7}
    found.report("source:s", IntervalId(0), MAX_TIME)
    assert found.changes() == {"source:s": MAX_TIME}


def test_the_bound_on_partitions_to_come_holds_a_source_with_a_share() -> None:
    found = Authority({"a": ["source:s"]}, {}, {}, {"source:s": 500_000})
    found.bound("source:s", 10)
    for number, value in enumerate((7, 20)):
        found.report("source:s", IntervalId(number), value)
    assert found.changes() == {"source:s": 10}


def test_a_value_of_a_share_never_goes_back_when_partitions_come_and_go() -> None:
    dice, found, last = random.Random(4), partitions({"source:s": 750_000}, 1, 2, 3, 4), MIN_TIME
    for number in range(4, 300):
        found.expect("source:s", IntervalId(number))
        found.report("source:s", IntervalId(dice.randrange(number + 1)), dice.randrange(1_000))
        found.retire("source:s", IntervalId(dice.randrange(number + 1)))
        changed = found.changes()
        found.adopt(changed)
        assert found.value("source:s") >= last
        last = found.value("source:s")
    assert last > MIN_TIME


def test_what_was_not_stored_is_among_the_next_changes() -> None:
    found = authority()
    for interval in (2, 3):
        found.report("a", IntervalId(interval), 50)
    changed = found.changes()
    assert (changed, found.changed()) == ({"a": 50}, False)
    found.refused("a")
    assert (found.changed(), found.changes(), found.changes()) == (True, {"a": 50}, {})
