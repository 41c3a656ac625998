"""What the user wrote, as a host calls it: a source that a worker had, lost, and has again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.host.alphabet import Discover, Discovery, Resume, Seek
from millwheel.ids import IntervalId, ProducerId
from millwheel.ports import SourcePosition
from millwheel.runtime.usercode import UserCode
from millwheel.search import BlockingCall, Search, Unknown
from millwheel.source import Source, SourcePartition
from millwheel_injectors import IterableSource

words = Stream("words", TextCoder())


class Keep(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class Rows(IterableSource[str]):
    """One partition, known by its name.  It notes what it may forget."""

    def __init__(self) -> None:
        super().__init__("text", [("a", 1)])
        self.released: list[str] = []

    def discover(self, known: Iterable[str]) -> list[SourcePartition[str]]:
        return [found for found in IterableSource("text", [("a", 1)]).discover(()) if found.name not in known]

    def search(self, known: set[str]) -> Search:
        return Source.search(self, known)

    def release(self, name: str) -> None:
        self.released.append(name)


def code_of(source: Rows) -> UserCode:
    pipeline = Pipeline("searched")
    pipeline.inject(source, into=words)
    pipeline.add(Keep, [subscribe(words, str)])
    return UserCode(graph=pipeline.graph(), tables={}, clock=lambda: 7)


def found(code: UserCode, earlier: tuple[SourcePosition, ...] | None) -> dict[str, bytes]:
    """One search, of a source of which nothing is finished."""
    step = code.discover(Discover("text", earlier))
    while not isinstance(step, Discovery):
        assert isinstance(step, BlockingCall | Unknown)
        answer = code.block("text", step) if isinstance(step, BlockingCall) else {*step.signs}
        step = code.seek(Seek("text", answer))
    return dict(step.found)


def test_a_source_that_a_worker_has_again_is_searched_as_if_for_the_first_time() -> None:
    code = code_of(Rows())
    names = [[*found(code, earlier)] for earlier in ((), None, None, (), None)]
    assert names == [["rows"], [], [], ["rows"], []]


@pytest.mark.parametrize("finished", [True, False])
def test_a_source_may_forget_what_is_finished_and_not_what_another_worker_goes_on_with(finished: bool) -> None:
    source, interval = Rows(), IntervalId(3)
    code = code_of(source)
    position = SourcePosition("rows", interval, ProducerId(5), 0, False, found(code, ())["rows"])
    code.resume(Resume("text", "rows", position))
    code.release(interval, finished)
    assert (source.released, code.partitions) == (["rows"] if finished else [], {})
