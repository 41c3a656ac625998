"""What a source has for nothing: its search, its signs, its rejected rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from millwheel.ids import IntervalId, ProducerId
from millwheel.ports import Source, SourcePartition, SourcePosition
from millwheel.search import BlockingCall, Search, Unknown, alone, sign
from millwheel_injectors import IterableSource


class Own(Source[Any]):
    """A source that somebody has written."""

    name = "own"

    def __init__(self, there: Iterable[str]) -> None:
        self.there = [*there]

    def discover(self, known: Iterable[str]) -> list[SourcePartition[Any]]:
        found: list[SourcePartition[Any]] = []
        for name in self.there:
            (partition,) = IterableSource("rows", [("value", 1)]).discover(())
            partition.name = name
            found.append(partition)
        return found

    def complete(self) -> bool:
        return True

    def pending_watermark(self) -> int:
        return 0


def driven(search: Search, finished: set[str]) -> list[str]:
    """The names that a search finds where these partitions are finished."""
    answer: Any = None
    while True:
        try:
            step = search.send(answer)
        except StopIteration as end:
            return [partition.name for partition in end.value]
        if isinstance(step, BlockingCall):
            answer = step.call()
        else:
            assert isinstance(step, Unknown)
            assert step.signs
            answer = {*step.signs} - {sign("name", name) for name in finished}


def test_a_search_finds_what_is_neither_open_nor_finished_and_asks_of_what_is_finished_once() -> None:
    source, known = Own("abc"), {"a"}
    assert driven(source.search(known), {"b"}) == ["c"]
    assert known == {"a", "b"}, "what is found is open only once the runtime has opened it"
    assert [partition.name for partition in alone(source.search({"b"}))] == ["a", "c"]
    assert driven(Own("").search(set()), set()) == []


def test_a_finished_partition_is_known_by_its_name() -> None:
    at = SourcePosition("a", IntervalId(1), ProducerId(1), 3, True, b"")
    assert Own("").signs(at) == [sign("name", "a")]
    assert Own("").title(at) == "a"


def test_rejected_rows_are_counted_by_kind_and_told() -> None:
    source, other = Own(""), Own("")
    assert source.rejections() == {}
    for row, reason in enumerate(("no key", "no key", "no coder")):
        source.reject("a", row, reason, object())
    assert source.rejections() == {"no key": 2, "no coder": 1}
    assert other.rejections() == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("path", "a"), ("inode", "a")),
        (("look", "a", 12, 3), ("look", "a", 1, 23)),
        (("look", "a", "b"), ("look", "ab")),
    ],
)
def test_other_parts_are_another_sign(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert sign(*one) != sign(*other)


def test_a_name_that_is_no_text_has_a_sign() -> None:
    assert sign("path", "\udcff") != sign("path", "\udcfe")
