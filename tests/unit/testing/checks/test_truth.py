"""The second copy of what is durable: what is left to be done."""

from __future__ import annotations

from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, subscribe
from millwheel.model import MAX_TIME
from millwheel.testing.checks.truth import Truth
from millwheel.testing.kit.scripted import ManualSource
from millwheel.testing.world.kernel import Kernel
from millwheel.work import QUARANTINE_HOLD

words = Stream("words", JsonCoder(str))


class Count(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


def truth() -> Truth:
    pipeline = Pipeline("p")
    pipeline.inject(ManualSource("text"), into=words)
    pipeline.add(Count, [subscribe(words, str)], quarantine_holds=True)
    return Truth(pipeline.graph(), Kernel(0))


def test_holds_are_work_and_so_is_that_of_a_quarantine() -> None:
    found = truth()
    found.durable["Count"].holds = {"a": MAX_TIME - 1, "b" + QUARANTINE_HOLD: 7}
    assert found.work_of("Count") == [("hold of 'a'", MAX_TIME - 1), (f"hold of {'b' + QUARANTINE_HOLD!r}", 7)]


def test_a_quarantine_holds_in_vain_what_its_interval_may_have_said_before() -> None:
    # Seed 431: a wall timer failed when all records had run, and its interval had said that it is at the end of time.
    found = truth()
    found.durable["Count"].holds = {"a" + QUARANTINE_HOLD: MAX_TIME - 1}
    assert found.work_of("Count") == []
