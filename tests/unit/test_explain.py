"""What `explain` says of a computation: a store by hand says what there is, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from millwheel import MAX_TIME, MIN_TIME, Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.cluster import Member, PlacedInterval, PlacedSource, StandsAt, Standstill
from millwheel.committed import Committed, Held
from millwheel.errors import WiringError
from millwheel.host.stalls import NOTHING_YET
from millwheel.ids import IntervalId, ProducerId, Sequencer
from millwheel.ports import IntervalRow, SourcePosition
from millwheel.work import QUARANTINE_HOLD
from millwheel_injectors import IterableSource
from millwheel_storage.postgres.overlays import Oldest, TimerRow

texts, words = Stream("texts", TextCoder()), Stream("words", TextCoder())


class Split(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class Count(Split):
    pass


def pipeline(quarantine_holds: bool = True) -> Pipeline:
    made = Pipeline("explained")
    made.inject(IterableSource("lines", [("a", 1)]), into=texts)
    made.add(Split, [subscribe(texts, str)], [words])
    made.add(Count, [subscribe(words, str)], quarantine_holds=quarantine_holds)
    return made


class ByHand:
    """What a store holds; each computation and the source stand at 50."""

    def __init__(self) -> None:
        self.marks = {"Count": 50, "Split": 50, "source:lines": 50}
        self.of: dict[str, dict[str, Any]] = {"Count": {}, "Split": {}}
        """By computation: timers, holds, and keys in quarantine."""
        self.productions: list[Oldest] = []
        self.stands: list[StandsAt] = []
        self.waiting: list[IntervalRow] = []
        self.members: list[tuple[int, int | None]] = []
        self.owners: tuple[int | None, int | None, int | None] = (None, None, None)
        """Of the source, and of the intervals of Split and Count."""
        self.streams = {"lines": "texts"}
        self.partitions: list[SourcePosition] = []
        self.opened = True

    def watermarks(self) -> dict[str, int]:
        return self.marks

    def timers(self, computation: str) -> list[TimerRow]:
        found: list[TimerRow] = self.of[computation].get("timers", [])
        return found

    def holds(self, computation: str) -> dict[str, int]:
        found: dict[str, int] = self.of[computation].get("holds", {})
        return found

    def quarantined_keys(self, computation: str) -> set[str]:
        found: set[str] = self.of[computation].get("asleep", set())
        return found

    def oldest_productions(self) -> list[Oldest]:
        return self.productions

    def standstills(self) -> list[StandsAt]:
        return self.stands

    def waiting_intervals(self) -> list[IntervalRow]:
        return self.waiting

    def overview(self) -> SimpleNamespace:
        source, split, count = self.owners
        placed = [
            PlacedInterval(IntervalId(number), name, "", None, owner, Sequencer(0))
            for number, name, owner in ((1, "Split", split), (2, "Count", count))
        ]
        members = [
            SimpleNamespace(member=Member(number, "w", "worker", "w:1"), left_us=left) for number, left in self.members
        ]
        return SimpleNamespace(
            members=members,
            sources=[SimpleNamespace(placed=PlacedSource("lines", source))],
            intervals=[SimpleNamespace(placed=one) for one in placed],
        )

    def shape(self) -> SimpleNamespace:
        return SimpleNamespace(streams=self.streams)

    def has_opened(self, source: str) -> bool:
        return self.opened

    def sources(self, source: str) -> list[SourcePosition]:
        return self.partitions


Asked = tuple[ByHand, Callable[..., list[Held]]]


@pytest.fixture
def asked() -> Asked:
    """A store, and what `explain` says of it: without the watermarks, which are always shown."""
    reader, committed = ByHand(), Committed(pipeline())
    committed._reader = reader  # type: ignore[assignment]

    def explain(name: str = "Count", limit: int = 10) -> list[Held]:
        bounds = [*sorted({"Count": ["Split"], "Split": ["source:lines"]}[name]), name]
        found = committed.explain(name, limit)
        shown = [Held("watermark", reader.marks.get(one, MIN_TIME), one) for one in bounds]
        at = found.index(shown[0])
        assert found[at : at + 2] == shown
        return [*found[:at], *found[at + 2 :]]

    return reader, explain


def position(name: str, rows: int, finished: bool = False) -> SourcePosition:
    return SourcePosition(name, IntervalId(0), ProducerId(0), rows, finished, b"")


def stand(name: str, number: int, at: int, since: int = 0, kind: str = "hold") -> StandsAt:
    return StandsAt(f"w{number}", Standstill(name, IntervalId(number), kind, at, "key 'k'" if number else "", since))


def test_a_name_that_is_none_is_refused(asked: Asked) -> None:
    with pytest.raises(WiringError, match=r"no computation 'Cuont'; there are \['Count', 'Split'\]"):
        Committed(pipeline()).explain("Cuont")


def test_what_workers_say_comes_first_and_the_oldest_of_it(asked: Asked) -> None:
    reader, explain = asked
    reader.marks = {"Count": 50, "Split": 50, "source:lines": 70}
    reader.of["Split"] = {"holds": {"k": 40}}  # they have said more of it
    reader.stands = [stand("Split", 2, 50, 9), stand("Split", 1, 40, 8), stand("Split", 3, 51), stand("Count", 4, 10)]
    assert explain() == [
        Held("hold", 40, "key 'k' in interval 1 of Split, at w1", 8),
        Held("hold", 50, "key 'k' in interval 2 of Split, at w2", 9),
    ], "what stands beyond its watermark does not keep it, nor does what is not where it is kept"
    reader.stands = [stand("Split", 0, 50, 9, "source")]
    assert explain() == [Held("source", 50, "in Split, at w0", 9)]
    reader.marks = {"Count": MAX_TIME, "Split": MAX_TIME, "source:lines": MAX_TIME}
    reader.stands = [stand("source:lines", 0, 50)]
    assert explain() == [], "all of it has come"


def test_without_their_word_what_is_stored_where_it_is_kept_comes_first(asked: Asked) -> None:
    reader, explain = asked
    reader.marks["source:lines"] = 70
    reader.of["Split"] = {
        "timers": [TimerRow("k", "wall", "t", 20), TimerRow("z", "watermark", "t", 30), TimerRow("k", "watermark", "u", 40)],
        "holds": {"h": 45},
        "asleep": {"z"},
    }  # fmt: skip
    assert explain() == [Held("timer", 40, "key 'k' tag 'u' (watermark) in Split")]
    assert explain("Split")[1:] == [
        Held("timer", 20, "key 'k' tag 't' (wall)"),
        Held("timer", 40, "key 'k' tag 'u' (watermark)"),
        Held("hold", 45, "key 'h'"),
    ]
    assert [held.kind for held in explain("Split", 1)[1:]] == ["timer", "hold"]
    reader.of["Split"]["timers"], reader.of["Split"]["holds"] = [], {"h": 51}
    assert explain() == [], "it is in memory only, and where, is shown anyway"


def test_a_source_that_is_too_far_ahead_is_named_as_paused() -> None:
    made, reader = Pipeline("paused"), ByHand()
    made.inject(IterableSource("lines", [("a", 1)]), into=texts, max_ahead=10, of=Split)
    made.add(Split, [subscribe(texts, str)])
    committed = Committed(made)
    committed._reader = reader  # type: ignore[assignment]
    reader.marks = {"Split": 50, "source:lines": 60}
    assert "paused" not in [held.kind for held in committed.explain("Split")]
    reader.marks["source:lines"] = 61
    (held,) = (held for held in committed.explain("Split") if held.kind == "paused")
    assert (held.timestamp, held.what.partition(":")[0]) == (61, "source lines is paused")


def test_a_partition_further_upstream_is_named(asked: Asked) -> None:
    reader, explain = asked
    reader.partitions = [
        position("p1", 9, True), position("p2", 3, False), position("p3", 4, False),
    ]  # fmt: skip
    (held,) = explain()
    assert (held.kind, held.timestamp, held.what.partition(";")[0]) == (
        "partition",
        50,
        "p2 of source lines, read to row 3",
    )
    assert [held.what.partition(" ")[0] for held in explain("Split")] == ["p2", "p3"]
    assert [held.what.partition(" ")[0] for held in explain("Split", 1)] == ["p2"]
    reader.partitions, reader.opened = [], False
    assert explain() == explain("Split") == [Held("source", 50, f"source lines: {NOTHING_YET}")]
    reader.marks["source:lines"] = MAX_TIME
    assert explain("Split") == []


def test_what_no_live_worker_has_is_named_of_a_cluster_only(asked: Asked) -> None:
    reader, explain = asked
    reader.partitions, reader.marks["source:lines"] = [], 70
    assert explain() == []
    reader.members, reader.owners = [(1, 5), (2, 0), (3, None)], (1, 2, 1)
    assert explain() == [Held("unserved", 50, "interval 1 of Split, which no live worker has")]
    reader.owners = (1, 3, 1)
    assert [held.kind for held in explain()] == ["unserved"], "whoever has left is not alive"
    reader.owners = (1, None, 1)
    assert [held.kind for held in explain()] == ["unserved"]
    reader.owners = (2, 1, 1)
    assert explain() == [], "the source keeps nothing"


def test_an_interval_that_has_not_begun_is_named_however_far_upstream(asked: Asked) -> None:
    reader, explain = asked
    reader.marks["source:lines"] = MAX_TIME
    reader.waiting = [IntervalRow(IntervalId(5), "Split", "", None), IntervalRow(IntervalId(6), "Count", "", None)]
    why = "until receivers have taken what was sent before it was cut off"
    assert explain() == [
        Held("behind", 50, f"interval 5 of Split, {why}"),
        Held("behind", 50, f"interval 6 of Count, {why}"),
    ]
    assert explain("Split") == [Held("behind", 50, f"interval 5 of Split, {why}")]


@pytest.mark.parametrize("holds", [True, False])
def test_a_key_in_quarantine_holds_where_it_is_said_to(holds: bool) -> None:
    reader, committed = ByHand(), Committed(pipeline(holds))
    committed._reader = reader  # type: ignore[assignment]
    reader.marks["source:lines"] = MAX_TIME
    reader.of["Count"] = {"holds": {"b": 60, "a": 55, "q" + QUARANTINE_HOLD: 52, "q": 51}, "asleep": {"q"}}
    reader.productions = [
        Oldest(IntervalId(2), "Count", "production", "k", 53), Oldest(IntervalId(1), "Split", "production", "k", 40),
    ]  # fmt: skip
    own = [held for held in committed.explain("Count") if held.kind != "watermark" and " in " not in held.what]
    assert [(held.kind, held.timestamp, held.what) for held in own] == [
        *([("hold", 51, "key 'q'")] if holds else []),
        ("quarantine", 52, "key 'q'"),
        ("hold", 55, "key 'a'"),
        ("hold", 60, "key 'b'"),
        ("production", 53, "interval 2 key 'k'"),
    ]
    assert len([held for held in committed.explain("Count", 2) if held.kind in ("hold", "quarantine")]) == 2


def test_a_source_that_was_left_out_is_named_while_it_is_not_read_to_its_end(asked: Asked) -> None:
    reader, explain = asked
    reader.marks |= {"source:lines": MAX_TIME, "source:gone": 44}
    reader.streams = {"lines": "texts", "gone": "texts", "other": "words"}
    assert Held("left out", 44, "source gone") in explain("Split")
    assert [held.what for held in explain() if held.kind == "left out"] == ["source other"]
    reader.opened = False
    assert [held for held in explain("Split") if held.kind == "left out"] == []
    reader.opened, reader.marks["source:gone"] = True, MAX_TIME
    assert [held for held in explain("Split") if held.kind == "left out"] == []
