"""What the user wrote, as a host calls it: a source that a worker had, lost, and has again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.host.alphabet import Discover, Discovery, Prepare, ReadRows, Resume, Seek
from millwheel.ids import IntervalId, ProducerId, Sequencer, SubscriptionId
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
    """One partition, known by its name.  It notes what it may forget, and when it was looked at: whoever looks takes time."""

    def __init__(self) -> None:
        super().__init__("text", [("a", 1)], record_id=self.id_of)
        self.released: list[str] = []
        self.now = 0
        self.looked_at: list[int] = []

    def look(self) -> None:
        self.now += 5
        self.looked_at.append(self.now)
        self.now += 5

    def id_of(self, value: str) -> str:
        self.look()
        return value

    def discover(self, known: Iterable[str]) -> list[SourcePartition[str]]:
        self.look()
        return [found for found in IterableSource("text", [("a", 1)]).discover(()) if found.name not in known]

    def search(self, known: set[str]) -> Search:
        return Source.search(self, known)

    def release(self, name: str) -> None:
        self.released.append(name)


def code_of(source: Rows) -> UserCode:
    pipeline = Pipeline("searched")
    pipeline.inject(source, into=words)
    pipeline.add(Keep, [subscribe(words, str)])
    return UserCode(graph=pipeline.graph(), tables={}, clock=lambda: source.now)


def searched(code: UserCode, earlier: tuple[SourcePosition, ...] | None) -> Discovery:
    """One search, of a source of which nothing is finished."""
    step = code.discover(Discover("text", earlier))
    while not isinstance(step, Discovery):
        assert isinstance(step, BlockingCall | Unknown)
        answer = code.block("text", step) if isinstance(step, BlockingCall) else {*step.signs}
        step = code.seek(Seek("text", answer))
    return step


def found(code: UserCode, earlier: tuple[SourcePosition, ...] | None) -> dict[str, bytes]:
    return dict(searched(code, earlier).found)


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


def test_a_search_and_a_read_say_when_they_began_and_not_when_they_ended() -> None:
    """What was written meanwhile may not have been seen, so silence counts up to the begin."""
    source = Rows()
    code = code_of(source)
    code.prepare(Prepare({"Keep<words": SubscriptionId(1)}))
    assert (searched(code, ()).asked_at, source.looked_at) == (0, [5])
    interval = IntervalId(3)
    position = SourcePosition("rows", interval, ProducerId(5), 0, False, found(code, ())["rows"])
    code.resume(Resume("text", "rows", position))
    began = source.now
    arrived = code.read(ReadRows(interval, Sequencer(1), 10, None))
    assert (arrived.asked_at, arrived.rows.count, source.looked_at[-1]) == (began, 1, began + 5)
