"""What is written and not folded: which keys, which entries, and what the tables do not have at all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.keys.dirty import DirtyKeys
from millwheel.ids import Seq


@given(st.lists(st.one_of(st.lists(st.sampled_from("abcdefgh"), max_size=5), st.integers(0, 6)), max_size=25))
def test_dirty_is_what_was_written_after_the_last_folded_checkpoint(steps: list[list[str] | int]) -> None:
    """A step is what the next checkpoint writes, or how many of those that are not folded stay so."""
    dirty, last, seq, folded = DirtyKeys(), dict[str, int](), 0, 0
    for step in steps:
        if isinstance(step, list):
            seq += 1
            dirty.mark(step, Seq(seq))
            last |= dict.fromkeys(step, seq)
        else:
            folded = max(folded, seq - step)
            dirty.folded(Seq(folded))
        assert dirty.keys == {key for key, written in last.items() if written > folded}


def test_entries_are_dirty_until_they_are_folded_and_the_last_one_counts() -> None:
    dirty = DirtyKeys()
    dirty.mark_entries("c", {"a": {"x": b"1", "y": b"1"}, "b": {"x": b"1"}}, Seq(1))
    dirty.mark_entries("c", {"a": {"y": None}}, Seq(2))
    dirty.mark_entries("d", {"a": {"y": b"3"}}, Seq(3))
    assert dirty.keys == {"a", "b"}
    assert dirty.entries_of(["a", "z"]) == {"a": {"c": {"x": b"1", "y": None}, "d": {"y": b"3"}}, "z": {}}
    dirty.folded(Seq(1))
    assert dirty.entries_of(["a", "b"]) == {"a": {"c": {"y": None}, "d": {"y": b"3"}}, "b": {}}
    assert dirty.keys == {"a"}


def test_what_is_forgotten_is_dirty_and_may_leave_when_that_is_folded() -> None:
    dirty = DirtyKeys()
    dirty.mark_forgotten(["a", "b"], Seq(1))
    dirty.mark_forgotten(["c"], Seq(2))
    assert (dirty.keys, dirty.being_forgotten(), [*dirty.take_forgotten()]) == ({*"abc"}, {*"abc"}, [])
    dirty.folded(Seq(1))
    assert ([*dirty.take_forgotten()], dirty.being_forgotten()) == (["a", "b"], {"c"})
    assert [*dirty.take_forgotten()] == [], "each once"


def test_what_the_tables_lack_is_told_once_to_the_fold_that_writes_it() -> None:
    dirty = DirtyKeys()
    dirty.mark_absent(["b", "a"], Seq(1))
    dirty.mark_absent(["c"], Seq(2))
    dirty.mark_absent(["d"], Seq(3))
    assert dirty.take_absent(Seq(0)) == set()
    assert [*dirty.take_absent(Seq(2))] == ["b", "a", "c"], "in their order, which a fold has sorted"
    assert dirty.take_absent(Seq(3)) == {"d"}
    assert dirty.take_absent(Seq(3)) == set()
