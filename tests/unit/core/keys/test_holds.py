"""Holds: one for each name; those of a key that sleeps are kept, and do not count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.keys.holds import Holds
from millwheel.model import MAX_TIME


def test_the_oldest_hold_counts() -> None:
    holds = Holds()
    assert (holds.minimum(), holds.first()) == (MAX_TIME, None)
    holds.set("a", 30)
    holds.set("b", 20)
    assert (holds.minimum(), holds.first()) == (20, "b")
    holds.set("b", 40)
    assert (holds.minimum(), holds.first()) == (30, "a")
    holds.remove("a")
    holds.remove("never set")
    assert (holds.minimum(), dict(holds.all)) == (40, {"b": 40})


def test_a_hold_that_sleeps_is_kept_and_does_not_count() -> None:
    holds = Holds()
    holds.set("a", 10)
    holds.sleep("a")
    assert (holds.minimum(), holds.counting("a"), dict(holds.all)) == (MAX_TIME, MAX_TIME, {"a": 10})
    holds.set("a", 5)
    assert holds.minimum() == MAX_TIME
    holds.wake("a")
    assert (holds.minimum(), holds.counting("a")) == (5, 5)


def test_a_hold_that_was_released_asleep_does_not_come_back() -> None:
    holds = Holds()
    holds.set("a", 10)
    holds.sleep("a")
    holds.remove("a")
    holds.wake("a")
    assert (holds.minimum(), dict(holds.all)) == (MAX_TIME, {})


NAMES = st.sampled_from("abc")
STEPS = st.one_of(
    st.tuples(st.just("set"), NAMES, st.integers(0, 9)),
    st.tuples(st.sampled_from(["remove", "sleep", "wake"]), NAMES, st.just(0)),
)


@given(st.lists(STEPS, max_size=30))
def test_it_is_a_dictionary_and_a_set(steps: list[tuple[str, str, int]]) -> None:
    holds, known, asleep = Holds(), dict[str, int](), set[str]()
    for step, name, timestamp in steps:
        if step == "set":
            holds.set(name, timestamp)
            known[name] = timestamp
        else:
            getattr(holds, step)(name)
            {"remove": lambda n: known.pop(n, None), "sleep": asleep.add, "wake": asleep.discard}[step](name)
        counting = {n: at for n, at in known.items() if n not in asleep}
        assert holds.minimum() == min(counting.values(), default=MAX_TIME)
        assert counting.get(holds.first() or "", MAX_TIME) == holds.minimum()
        assert dict(holds.all) == known
