"""Sinks on the memory store: what is in their tables, also under faults."""

from __future__ import annotations

from typing import TypedDict

import msgspec
import pytest

from millwheel import SECOND, MsgpackCoder, Pipeline, Stream, Table
from millwheel.errors import WiringError
from millwheel.library import Chain, Flow, seconds
from millwheel.testing import Faults, Stepper, simulate


class Visit(msgspec.Struct, frozen=True):
    page: str
    number: int


class Newest(TypedDict):
    page: str
    number: int


visits = Stream("visits", MsgpackCoder(Visit))
NEWEST = Table("newest", Newest, ("page",))


def begin() -> tuple[Pipeline, Chain[Visit]]:
    pipeline = Pipeline("sinks")
    return pipeline, Flow(pipeline).read(visits)


def page(visit: Visit) -> str:
    return visit.page


def sinks() -> Pipeline:
    pipeline, chain = begin()
    keyed = chain.filter(lambda visit: visit.number >= 0).key_by(page)
    keyed.append_to("log", {"visit": "bigint"}, lambda visit: {"visit": visit.number})
    keyed.latest_to(NEWEST, lambda visit: Newest(page=visit.page, number=visit.number))
    chain.to_files("dump", Visit, rows=3, every=seconds(60))
    return pipeline


def test_appended_rows_are_numbered_by_key() -> None:
    stepper = Stepper(sinks())
    for number, name in enumerate("aba"):
        stepper.send(visits, Visit(name, number), number)
    stepper.send(visits, Visit("a", -1), 9)
    assert [(row["key"], row["number"], row["visit"]) for row in stepper.rows("log")] == [
        ("a", 0, 0), ("a", 1, 2), ("b", 0, 1),
    ]  # fmt: skip


def test_the_latest_row_is_the_newest_by_event_time() -> None:
    stepper = Stepper(sinks())
    for number, time in enumerate((5, 9, 7, 9, 8)):
        stepper.send(visits, Visit("a", number), time)
    assert stepper.rows(NEWEST) == [{"page": "a", "number": 3}]


def test_a_part_is_sealed_when_it_is_full_or_old_or_the_input_ends() -> None:
    stepper = Stepper(sinks())

    def sealed() -> list[tuple[int, int]]:
        return [(row["part"], row["rows"]) for row in stepper.rows("dump_parts")]

    for number in range(4):
        stepper.send(visits, Visit("a", number), number)
    assert sealed() == [(0, 3)]
    stepper.advance_clock(59 * SECOND)
    stepper.send(visits, Visit("a", 4), 4)
    stepper.advance_clock(SECOND)
    assert sealed() == [(0, 3), (1, 2)]
    stepper.advance_clock(100 * SECOND)
    stepper.send(visits, Visit("a", 5), 5)
    assert sealed() == [(0, 3), (1, 2)]
    stepper.finish()
    assert sealed() == [(0, 3), (1, 2), (2, 1)]
    assert [msgspec.json.decode(row["value"], type=Visit).number for row in stepper.rows("dump_rows")] == [*range(6)]


def test_a_part_may_be_one_row_and_each_is_sealed_a_while_after_its_own_first_row() -> None:
    pipeline, chain = begin()
    chain.to_files("one", Visit, rows=1)
    chain.to_files("dump", Visit, rows=2, every=seconds(60))
    stepper = Stepper(pipeline)

    def sealed(name: str) -> list[tuple[int, int]]:
        return [(row["part"], row["rows"]) for row in stepper.rows(f"{name}_parts")]

    for number in range(2):
        stepper.send(visits, Visit("a", number), number)
    assert (sealed("one"), sealed("dump")) == ([(0, 1), (1, 1)], [(0, 2)])
    stepper.advance_clock(59 * SECOND)
    stepper.send(visits, Visit("a", 2), 2)
    stepper.advance_clock(60 * SECOND - 1)
    assert sealed("dump") == [(0, 2)]
    stepper.advance_clock(1)
    assert sealed("dump") == [(0, 2), (1, 1)]
    stepper.advance_clock(600 * SECOND)
    stepper.finish()
    assert sealed("dump") == [(0, 2), (1, 1)], "there is no part without a row"


def test_a_full_part_leaves_no_timer_behind() -> None:
    pipeline, chain = begin()
    chain.to_files("dump", Visit, rows=2, every=seconds(60))
    stepper = Stepper(pipeline)
    for number in range(2):
        stepper.send(visits, Visit("a", number), number)
    stepper.restart()  # all logs are folded
    assert not any(stepper.store.inner.folded.timers["dump.parts"].values())


def test_each_record_may_be_several_rows() -> None:
    pipeline, chain = begin()
    chain.key_by(page).upsert_to(
        NEWEST, lambda visit: [Newest(page=visit.page + more, number=visit.number) for more in ("", "'")]
    )
    stepper = Stepper(pipeline)
    for number, name in enumerate("aba"):
        stepper.send(visits, Visit(name, number), number)
    rows = {row["page"]: row["number"] for row in stepper.rows(NEWEST)}
    assert rows == {"a": 2, "a'": 2, "b": 1, "b'": 1}


@pytest.mark.parametrize("seed", range(4))
def test_under_faults_each_record_is_one_row(seed: int) -> None:
    rows = [(Visit("ab"[n % 2], n), n) for n in range(40)]
    outcome = simulate(sinks(), {"visits": rows}, seed=seed, faults=Faults(crash=0.005))
    assert sorted(row["visit"] for row in outcome.rows("log")) == [*range(40)]
    assert outcome.rows(NEWEST) == [{"page": "a", "number": 38}, {"page": "b", "number": 39}]
    stored = outcome.rows("dump_rows")
    assert sorted(msgspec.json.decode(row["value"], type=Visit).number for row in stored) == [*range(40)]
    assert sum(row["rows"] for row in outcome.rows("dump_parts")) == 40
    assert len(stored) == len({(row["shard"], row["part"], row["place"]) for row in stored})


def test_more_shards_have_parts_of_their_own() -> None:
    pipeline, chain = begin()
    chain.to_files("dump", Visit, rows=100, shards=4)
    assert [it.key_version for it in pipeline.declared()[1]["dump.parts"].inputs] == ["4 shards"]
    stepper = Stepper(pipeline)
    for number in range(40):
        stepper.send(visits, Visit("a", number), number)
    stepper.finish()
    assert len(stepper.rows("dump_parts")) == 4
    assert sum(row["rows"] for row in stepper.rows("dump_parts")) == 40


def test_what_is_no_row_is_refused() -> None:
    _, chain = begin()
    with pytest.raises(WiringError, match="number"):
        chain.key_by(page).append_to("log", {"number": "bigint"}, lambda visit: {"number": 1})
    with pytest.raises(WiringError, match="a row is a"):
        chain.map(lambda visit: visit.number).to_files("dump", int)
    with pytest.raises(WiringError, match="at least one row"):
        chain.to_files("dump", Visit, rows=0)
