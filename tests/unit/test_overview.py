"""What a cluster looks like from outside, and orders to it: a store by hand says what is there and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from millwheel import SECOND, Computation, Context, Pipeline, Record, Stream, TextCoder, limits, subscribe
from millwheel.cli.main import main
from millwheel.cli.options import Place
from millwheel.cluster import ClusterMap, HotKey, Leader, MapOrder, Member, PlacedInterval, PlacedSource
from millwheel.errors import InvariantError, StoreError
from millwheel.ids import IntervalId, Sequencer
from millwheel.overview import ClusterOffice, SeenHotKey
from millwheel_injectors import IterableSource

texts = Stream("texts", TextCoder())


class Pass(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


def ahead() -> Pipeline:
    """Two sources; `fast` waits when it is ten seconds ahead of the computation."""
    pipeline = Pipeline("ahead")
    fast, slow = (IterableSource(name, [("a", 1)]) for name in ("fast", "slow"))
    pipeline.inject(fast, into=texts, max_ahead=10 * SECOND, of=Pass)
    pipeline.inject(slow, into=texts)
    pipeline.add(Pass, [subscribe(texts, str)])
    return pipeline


def interval(number: int, computation: str, low: str, high: str | None, owner: int | None) -> PlacedInterval:
    return PlacedInterval(IntervalId(number), computation, low, high, owner, Sequencer(0))


class ByHand:
    """A store and its reader."""

    def __init__(self) -> None:
        self.map = ClusterMap(
            7,
            Leader(2, 5, "c:2"),
            (
                Member(1, "one", "worker", "w:1"),
                Member(2, "two", "controller", "c:2"),
                Member(3, "three", "worker", "w:3", False),
                Member(4, "four", "controller", "c:4"),
            ),
            (interval(9, "b", "", None, None), interval(5, "a", "m", None, 8), interval(6, "a", "", "m", 3)),
            (PlacedSource("fast", 1), PlacedSource("slow", None)),
        )  # fmt: skip
        self.marks = {"Pass": 5 * SECOND, "source:fast": 16 * SECOND, "source:slow": 6 * SECOND}
        self.given: list[MapOrder] = []
        self.refusals: list[str | None] = []
        self.asked: list[int] = []

    async def cluster_map(self) -> ClusterMap:
        return self.map

    async def hot_keys(self) -> list[HotKey]:
        return [HotKey(IntervalId(5), "x", 420), HotKey(IntervalId(5), "y", 56)]

    async def order(self, order: MapOrder) -> int:
        self.given.append(order)
        return 40 + len(self.given)

    async def refusal(self, number: int) -> str | None:
        self.asked.append(number)
        return self.refusals.pop(0) if self.refusals else None

    def log_lengths(self) -> dict[int, int]:
        return {5: 3}

    def watermarks(self) -> dict[str, int]:
        return self.marks

    def rows_read(self) -> dict[str, int]:
        return {"fast": 12}

    def sources(self, name: str) -> list[Any]:
        return [SimpleNamespace(finished=finished) for finished in ((True, False, False) if name == "fast" else ())]

    def is_run_embedded(self) -> bool:
        return False


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ByHand, ClusterOffice]]:
    monkeypatch.setattr(limits, "ORDER_LOOK_S", 0.0)
    store, office = ByHand(), ClusterOffice(ahead())
    with asyncio.Runner() as runner:
        office._parts = runner, store, store  # type: ignore[assignment]
        yield store, office


def test_everything_has_its_owner_by_name(cluster: tuple[ByHand, ClusterOffice]) -> None:
    _, office = cluster
    found = office.look()
    assert [(m.name, m.host, m.leads, m.alive) for m in found.members] == [
        ("one", "w1", False, True),
        ("two", "c2", True, True),
        ("three", "w3", False, False),
        ("four", "c4", False, True),
    ]
    assert [(i.id, i.owner, i.backlog) for i in found.intervals] == [(6, "three", 0), (5, "member 8", 3), (9, None, 0)]
    assert [i.hot for i in found.intervals] == [(), (SeenHotKey("x", 0.42), SeenHotKey("y", 0.056)), ()]
    assert [(s.name, s.owner, s.rows, s.open_partitions) for s in found.sources] == [
        ("fast", "one", 12, 2),
        ("slow", None, 0, 0),
    ]
    assert found.sources[0].paused.startswith("source fast is paused: it is more than 10 s ahead of Pass at")
    assert (found.sources[1].paused, found.version, found.embedded, found.lag_us) == ("", 7, False, SECOND)


def test_a_rate_is_by_the_second_and_of_what_was_there_before(cluster: tuple[ByHand, ClusterOffice]) -> None:
    _, office = cluster
    first, then = office.look(), office.look()
    assert first.rows_a_second(None) == then.rows_a_second(then) == {}
    assert then.rows_a_second(first) == {"fast": 0.0, "slow": 0.0}


ORDERS: list[tuple[Callable[[ClusterOffice], None], MapOrder]] = [
    (lambda office: office.move([9, 5], "one"), MapOrder("move", (IntervalId(9), IntervalId(5)), to="one")),
    (lambda office: office.split(6, ["c", "f"]), MapOrder("split", (IntervalId(6),), split_keys=("c", "f"))),
    (lambda office: office.merge([6, 5]), MapOrder("merge", (IntervalId(6), IntervalId(5)))),
]


@pytest.mark.parametrize(("give", "order"), ORDERS)
@pytest.mark.parametrize("refusal", ["", "no worker is called 'one'"])
def test_whoever_orders_waits_for_what_becomes_of_it(
    cluster: tuple[ByHand, ClusterOffice], give: Callable[[ClusterOffice], None], order: MapOrder, refusal: str
) -> None:
    store, office = cluster
    store.refusals = [None, None, refusal]
    if refusal:
        with pytest.raises(StoreError, match=f"^the leader refuses: {refusal}$"):
            give(office)
    else:
        give(office)
    assert (store.given, store.asked) == ([order], [41, 41, 41])


@pytest.mark.parametrize(
    ("give", "says"),
    [
        (lambda office: office.move([9, 5, 9], "one"), "interval 9 is named twice"),
        (lambda office: office.move([5, 7], "one"), r"there is no interval 7: .* there are \[5, 6, 9\]"),
        (lambda office: office.merge([5]), "merge makes one interval of two or more neighbours"),
        (lambda office: office.merge([5, 5]), "interval 5 is named twice"),
        (lambda office: office.split(5, ["a"], wait_s=0), "no leader has carried the order out in 0 s; it stays"),
    ],
)
def test_an_order_that_cannot_be_is_told(
    cluster: tuple[ByHand, ClusterOffice], give: Callable[[ClusterOffice], None], says: str
) -> None:
    store, office = cluster
    with pytest.raises(StoreError, match=says):
        give(office)
    assert len(store.given) == ("it stays" in says)


@pytest.mark.parametrize(
    ("typed", "order", "said"),
    [
        ("move a:b 9 5 --to one", MapOrder("move", (IntervalId(9), IntervalId(5)), to="one"), "9, 5 moved to one"),
        (
            r"split a:b 6 c\td \u202ef",
            MapOrder("split", (IntervalId(6),), split_keys=("c\td", "\u202ef")),
            "interval 6 is split",
        ),
        ("merge a:b 6 5", MapOrder("merge", (IntervalId(6), IntervalId(5))), "6, 5 are one interval now"),
    ],
)
def test_the_command_orders_what_is_typed_and_keys_are_typed_as_they_are_shown(
    cluster: tuple[ByHand, ClusterOffice], typed: str, order: MapOrder, said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    store, office = cluster
    monkeypatch.setattr(Place, "office", lambda place: nullcontext(office))
    store.refusals = [""]
    assert main(["interval", *typed.split(" ")]) == 0
    assert store.given == [order]
    assert capsys.readouterr().out == f"millwheel: {said}\n"


def test_orders_are_for_a_controller_that_lives(cluster: tuple[ByHand, ClusterOffice]) -> None:
    store, office = cluster
    dead = tuple(replace(one, alive=False) if one.role == "controller" else one for one in store.map.members)
    store.map = replace(store.map, members=dead)
    with pytest.raises(StoreError, match=r"^no controller of 'ahead' runs, and orders are for the one that leads"):
        office.split(6, ["c"])
    assert not store.given


def test_an_office_is_open_in_its_block_only() -> None:
    with pytest.raises(InvariantError, match="context manager"):
        ClusterOffice(ahead()).look()
