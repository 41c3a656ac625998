"""What a new version changes in a store, and what it is refused for: both stores do what is planned here."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace

from millwheel import (
    Computation,
    Context,
    DroppedCell,
    JsonCoder,
    ListCell,
    MapCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    TextCoder,
    ValueCell,
    subscribe,
)
from millwheel.errors import IncompatibleStore, WiringError
from millwheel.library.matches import KeptCoder
from millwheel.ports import PipelineShape
from millwheel_injectors import IterableSource
from millwheel_storage.fold import Folded
from millwheel_storage.schema.evolution import holders, places_of, plan, touched


def check(stored: PipelineShape, shape: PipelineShape) -> PipelineShape:
    found = plan(stored, shape)
    found.check()
    return found.shape


def test_an_addition_is_fine_and_a_removal_is_not() -> None:
    old = PipelineShape("p", {"a": ()}, {"a<s": "s"}, {"stream:s": "bytes"}, (), ())
    new = PipelineShape(
        "p", {"a": (), "b": ()}, {"a<s": "s", "b<s": "s"}, {"stream:s": "bytes", "cell:b.c": "json"}, (), ()
    )
    check(old, new)
    with pytest.raises(IncompatibleStore) as refused:
        check(new, old)
    assert str(refused.value) == (
        "the store holds work of computation 'b', which the pipeline no longer has: put it back, or add the one that takes "
        "its place with formerly='b', or, as a step of a chain, name='b'; or drop it with all that the store holds of it: "
        "pipeline.drop('b'); or reset the store"
    )
    one = PipelineShape("p", {"a": ()}, {"a<s": "s", "a<t": "t"}, {"stream:s": "bytes"}, (), ())
    with pytest.raises(IncompatibleStore) as refused:
        check(one, old)
    assert str(refused.value) == (
        "the store holds work of subscription 'a<t', which the pipeline no longer has: put it back, with a key function that "
        "gives None for what is not to be read any more; or drop it with what is on its way: "
        "pipeline.drop('a', input='t'); or reset the store"
    )


def test_a_name_that_the_store_knows_is_not_given_to_another_computation() -> None:
    old = PipelineShape("p", {"a": (), "b": ()}, {"a<s": "s", "b<s": "s"}, {"stream:s": "bytes"}, (), ())
    new = PipelineShape("p", {"b": ()}, {"b<s": "s"}, {"stream:s": "bytes"}, (), (), formerly={"computation:b": "a"})
    found = plan(old, new)
    assert (found.renamed, found.subscriptions) == ({}, {})
    with pytest.raises(IncompatibleStore, match="the store holds work of computation 'a'"):
        found.check()
    both = msgspec.structs.replace(old, formerly={"computation:c": "a"}, computations={"a": (), "b": (), "c": ()})
    assert plan(old, both).renamed == {}, "the earlier one is there"


def test_a_cell_that_is_there_is_not_the_new_name_of_another() -> None:
    found = plan(shape(Both), shape(Renamed))
    assert [cell.name for cell in found.missing] == ["cnt"]
    assert not found.changes


def test_a_key_that_the_log_forgets_holds_nothing() -> None:
    gone = Folded(forgotten={"a"})
    assert touched([gone]) == {"a"}
    assert holders(2, [("a", "")], [gone], "cell") == 1


def test_what_is_new_is_said() -> None:
    old = PipelineShape(
        "p", {"a": ()}, {"a<s": "s"}, {"cell:a.c": "json"}, (), ("log", "old"), {"log": "s", "old": "s"}
    )
    new = PipelineShape(
        "p", {"a": (), "b": (), "published:s": ()}, {"a<s": "s", "a<s#2": "s", "b<s": "s", "published:s<s": "s"},
        {"cell:a.c": "json", "cell:a.d": "json", "cell:b.c": "json", "cell:published:s.count": "json"}, (), ("log", "more"),
        {"log": "s", "more": "s"},
    )  # fmt: skip
    found = plan(old, new)
    assert found.changes == [
        "source 'old' is left out",
        "computation 'b' is new, and begins with what comes from now on",
        "input 'a<s#2' is new, and begins with what comes from now on",
        "source 'more' is new, and feeds what 'old' fed, which is left out: a row that both read counts twice",
        "stream 's' is published from now on",
        "cell 'a.d' is new",
    ]
    # One that has only another name now: all was counted twice, and nothing said so.
    said = "source 'more' feeds what 'old' fed, which is left out: a row that both read counts twice; "
    assert [doubt.startswith(said) for doubt in found.doubts] == [True]
    assert plan(found.shape, new).changes == plan(found.shape, new).doubts == []
    assert "stream 's' is not published any more" in plan(found.shape, old).changes


@pytest.mark.parametrize("coder", [JsonCoder, MsgpackCoder])
def test_the_name_of_a_type_is_no_part_of_how_its_values_are_written(coder: Any) -> None:
    """It may have colons, as the other parts of a fingerprint have."""

    class Narrow(Base):
        it = ValueCell(coder(list[Literal["a:b"]] | None), default=None)

    class Wide(Base):
        it = ValueCell(coder(list[Literal["a:b", "c:d"]] | None), default=None)

    found = plan(shape(Narrow), shape(Wide))
    assert found.refusals == []
    assert found.changes == ["cell:c.it: field '[…]': may also be 'c:d'"]


def test_the_protocol_inside_another_one_is_a_part_of_it() -> None:
    class Before(Base):
        it = MapCell(KeptCoder(JsonCoder(int)))

    class After(Base):
        it = MapCell(KeptCoder(MsgpackCoder(int)))

    assert len(plan(shape(Before), shape(After)).refusals) == 1


def test_what_waits_for_a_partner_changes_as_any_value_does() -> None:
    class First(msgspec.Struct):
        it: int

    class More(First):
        also: str = ""

    class Less(msgspec.Struct):
        also: str

    def waiting(type_: Any) -> PipelineShape:
        return shape(type("Join", (Base,), {"side0": MapCell(KeptCoder(MsgpackCoder(type_)))}))

    found = plan(waiting(First), waiting(More))
    assert (found.refusals, len(found.changes)) == ([], 1)
    assert len(plan(waiting(First), waiting(Less)).refusals) == 1


def test_state_of_another_meaning_is_refused_with_a_way_to_go_on() -> None:
    def counting(meaning: str) -> PipelineShape:
        return PipelineShape(
            "p", {"a": ()}, {"a<s": "s"}, {"cell:a.c": f"map:json/1:int:f0765dbf409c as {meaning}"}, (), ()
        )

    with pytest.raises(IncompatibleStore) as refused:
        check(counting("count of fixed 5"), counting("count of fixed 10"))
    assert str(refused.value) == (
        "cell:a.c is stored as 'count of fixed 5', and now means 'count of fixed 10': give the new step another name, and "
        "keep the old one under its own, behind .filter(lambda value: False), so that it ends what it has begun; or reset "
        "the store"
    )


def fed(streams: dict[str, str], splits: tuple[str, ...] = ()) -> PipelineShape:
    return PipelineShape("p", {"a": splits}, {"a<s": "s"}, {}, (), tuple(streams), streams)


def test_a_source_stays_with_its_stream_even_when_it_was_away() -> None:
    stored = fed({"log": "s"})
    check(stored, fed({"log": "s", "more": "s"}))
    check(PipelineShape("p", {"a": ()}, {"a<s": "s"}, {}, (), ("log",)), fed({"log": "t"}))
    without = check(stored, fed({}))
    with pytest.raises(IncompatibleStore, match=r"source 'log' has fed stream 's'.*into 't'"):
        check(without, fed({"log": "t"}))


def test_a_stream_that_nobody_reads_for_a_while_keeps_its_coder() -> None:
    """What was sent on it may wait in the store."""
    one = PipelineShape("p", {"a": ()}, {"a<s": "s"}, {"stream:s": "bytes"}, (), ())
    stored = replace(one, subscriptions={"a<s": "s", "a<t": "t"}, coders={"stream:s": "bytes", "stream:t": "json/1"})
    without = check(stored, replace(one, gone=("a<t",)))
    assert check(without, stored).coders["stream:t"] == "json/1"
    with pytest.raises(IncompatibleStore, match="stream:t is stored with coder 'json/1'"):
        check(without, replace(stored, coders={"stream:s": "bytes", "stream:t": "text"}))


def test_under_another_name_a_computation_has_the_keys_that_it_had() -> None:
    stored = PipelineShape("p", {"a": ("m",)}, {"a<s": "s"}, {}, (), (), key_versions={"a<s": "2"})
    named = replace(
        stored, computations={"b": ("m",)}, subscriptions={"b<s": "s"}, formerly={"computation:b": "a"},
        key_versions={"b<s": "2"},
    )  # fmt: skip
    found = plan(stored, named)
    assert (found.refusals, found.recuts, found.moves()) == ([], [], False)
    (recut,) = plan(stored, replace(named, key_versions={})).recuts
    assert (recut.computation, recut.mixed) == ("b", True), "all of them are told what came by the keys of before"


def of_kinds(**kinds: str) -> PipelineShape:
    return replace(fed({"log": "s"}), kinds=kinds)


def test_a_source_stays_of_its_kind_even_when_it_was_away() -> None:
    """Positions of another kind mean nothing to it: it read all rows again, and they counted twice."""
    stored = of_kinds(log="files")
    check(stored, of_kinds(log="files", more="an iterable"))
    check(of_kinds(), stored)  # of an earlier version of millwheel
    own = check(stored, of_kinds())  # one's own source says nothing, and may read the same
    for before in (stored, own, check(stored, fed({}))):
        with pytest.raises(
            IncompatibleStore, match=r"source 'log' has read files, and now reads an output of Spark, which"
        ):
            check(before, of_kinds(log="an output of Spark"))


lines = Stream("lines", TextCoder())


class Base(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


def shape(class_: type[Computation[str]], **settings: Any) -> PipelineShape:
    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("rows", [("a", 1)]), into=lines)
    pipeline.add(class_, [subscribe(lines, str)], **{"name": "c", **settings})
    return pipeline.graph().shape()


class First(Base):
    cnt = ValueCell(JsonCoder(int), default=0)
    words = ListCell(TextCoder())


class Renamed(Base):
    count = ValueCell(JsonCoder(float), default=0, formerly="cnt")
    words = ListCell(TextCoder())


class Both(Base):
    cnt = ValueCell(JsonCoder(int), default=0)
    count = ValueCell(JsonCoder(float), default=0)
    words = ListCell(TextCoder())


class RenamedAgain(Base):
    total = ValueCell(JsonCoder(float | None), default=0, formerly="count")
    words = ListCell(TextCoder())
    cnt = MapCell(JsonCoder(int))


class Undeclared(Base):
    total = ValueCell(JsonCoder(float | None), default=0)
    words = ListCell(TextCoder())
    cnt = MapCell(JsonCoder(int))


class Dropped(Base):
    total = ValueCell(JsonCoder(float | None), default=0)
    words = DroppedCell()
    cnt = MapCell(JsonCoder(int))


class OtherKind(Base):
    cnt = ListCell(JsonCoder(int))
    words = ListCell(TextCoder())


@pytest.mark.parametrize("name", ["c", "a.c", "c.cnt", "a.b.c"])
def test_a_renamed_cell_keeps_its_place_and_a_new_one_does_not_take_it(name: str) -> None:
    first = check(shape(First, name=name), shape(Renamed, name=name))
    assert first.places == {f"{name}.count": "cnt"}
    again = plan(first, shape(RenamedAgain, name=name))
    assert again.refusals == []
    assert again.changes == [
        f"cell '{name}.count' is now '{name}.total'", f"cell:{name}.total: may also be None", f"cell '{name}.cnt' is new",
    ]  # fmt: skip
    assert again.shape.places == {f"{name}.total": "cnt", f"{name}.cnt": "cnt#2"}
    later = check(again.shape, shape(Undeclared, name=name))  # the store knows, the declaration may go
    assert later.places == again.shape.places
    assert f"cell:{name}.count" not in later.coders


@pytest.mark.parametrize("name", ["c", "a.c", "c.words", "a.b.c"])
def test_a_dropped_cell_is_planned_and_its_place_is_not_used_again(name: str) -> None:
    stored = check(check(shape(First, name=name), shape(Renamed, name=name)), shape(RenamedAgain, name=name))
    found = plan(stored, shape(Dropped, name=name))
    assert [cell.path for cell in found.dropped] == [f"{name}.words"]
    assert not found.missing
    assert f"cell:{name}.words" not in found.shape.coders
    back = check(found.shape, shape(Undeclared, name=name))
    assert back.places[f"{name}.words"] == "words#2"
    renamed = check(found.shape, shape(Undeclared, name="d", formerly=name))
    assert renamed.places["d.words"] == "words#2"


def test_the_places_of_dropped_cells_never_run_out() -> None:
    """However often the only cell of a computation goes and comes."""

    class Held(Base):
        it = ValueCell(JsonCoder(int), default=0)

    class Gone(Base):
        it = DroppedCell()

    stored = shape(Held)
    for number in range(2, 6):
        found = plan(stored, shape(Gone))
        assert [cell.place for cell in found.dropped] == [stored.places.get("c.it", "it")]
        stored = check(found.shape, shape(Held))
        assert stored.places == {"c.it": f"it#{number}"}


def test_a_missing_cell_is_refused_with_the_number_of_its_keys() -> None:
    found = plan(shape(First), shape(Base))
    assert [cell.name for cell in found.missing] == ["cnt", "words"]
    found.settle({found.missing[0]: 12_345, found.missing[1]: 0})
    with pytest.raises(
        IncompatibleStore, match=r"'c.cnt' is not in the code any more, and 12,345 keys hold it: .*DroppedCell"
    ):
        found.check()
    assert found.changes == ["cell 'c.words' goes; no key holds it"]


def test_a_cell_that_one_key_holds_is_missed_as_much_as_any() -> None:
    found = plan(shape(First), shape(Base))
    found.settle(dict.fromkeys(found.missing, 1))
    assert len(found.refusals) == len(found.missing) > 0
    assert all("1 key holds it" in refusal for refusal in found.refusals)


def test_a_store_is_of_one_pipeline_though_two_names_may_be_one_schema() -> None:
    stored = PipelineShape("a-b", {"a": ()}, {}, {}, (), ())
    assert plan(stored, replace(stored, name="a_b")).refusals == ["the store belongs to pipeline 'a-b', not to 'a_b'"]


def test_a_renamed_computation_takes_everything_along() -> None:
    stored = check(shape(First), shape(Renamed))
    found = plan(stored, shape(Renamed, name="counter", formerly="c"))
    assert (found.refusals, found.renamed) == ([], {"c": "counter"})
    assert found.subscriptions == {"c<lines": "counter<lines"}
    assert found.shape.places == {"counter.count": "cnt"}
    assert not any(name.startswith("cell:c.") for name in found.shape.coders)
    assert (
        plan(stored, shape(Renamed, name="counter")).refusals[0].startswith("the store holds work of computation 'c'")
    )
    assert not plan(found.shape, shape(Renamed, name="counter", formerly="c")).changes


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (OtherKind, "cell:c.cnt is stored with coder 'value:json/1:int"),
    ],
)
def test_another_kind_of_cell_is_refused(new: type[Computation[str]], why: str) -> None:
    with pytest.raises(IncompatibleStore, match=why):
        check(shape(First), shape(new))


class Mine:
    fingerprint = "mine/2"
    reads: tuple[str, ...] = ("mine/1",)

    def encode(self, value: str, /) -> bytes:
        return value.encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()


def test_a_coder_of_ones_own_says_what_it_reads() -> None:
    class Older(Mine):
        fingerprint = "mine/1"
        reads = ()

    class New(Base):
        text = ValueCell(Mine(), default="")

    class Old(Base):
        text = ValueCell(Older(), default="")

    found = plan(shape(Old), shape(New))
    assert found.refusals == []
    assert [change.split(": ", 1)[1] for change in found.changes] == [
        "coder 'value:mine/2' reads what 'value:mine/1' wrote"
    ]
    assert len(plan(shape(New), shape(Old)).refusals) == 1

    class Oldest(Older):
        fingerprint = "mine/0"

    class Ancient(Base):
        text = ValueCell(Oldest(), default="")

    assert len(plan(shape(Ancient), shape(New)).refusals) == 1, "it reads some, and not these"


def test_a_store_of_an_earlier_version_has_no_descriptions() -> None:
    import msgspec

    old = msgspec.structs.replace(shape(First), schemas={})
    assert plan(old, shape(First)).refusals == []
    assert plan(old, shape(First)).shape.schemas == shape(First).schemas
    with pytest.raises(IncompatibleStore, match="is stored with coder"):
        check(old, shape(Renamed))


def test_contradictions_are_refused() -> None:
    class Twice(Base):
        a = ValueCell(JsonCoder(int), default=0, formerly="x")
        b = ValueCell(JsonCoder(int), default=0, formerly="x")

    class Still(Base):
        a = ValueCell(JsonCoder(int), default=0, formerly="b")
        b = ValueCell(JsonCoder(int), default=0)

    for class_ in (Twice, Still):
        with pytest.raises(WiringError, match="declared for something else too"):
            shape(class_)
    with pytest.raises(WiringError, match="which the pipeline still has"):
        shape(Base, formerly="c")
    with pytest.raises(WiringError, match="no name that a cell"):
        ValueCell(JsonCoder(int), default=0, formerly="not a name")
    with pytest.raises(WiringError, match="is dropped has no values"):
        _ = Dropped().words


def test_names_with_dots_are_told_apart() -> None:
    stored = check(shape(First, name="a.b"), shape(Renamed, name="a.b"))
    assert stored.places == {"a.b.count": "cnt"}
    found = plan(stored, shape(Renamed, name="a.b.c", formerly="a.b"))
    assert (found.refusals, found.shape.places) == ([], {"a.b.c.count": "cnt"})
    assert places_of(found.shape) == {"a.b.c": {"count": "cnt"}}
    assert plan(stored, shape(Dropped, name="a.b")).dropped[0].path == "a.b.words"
    dotted = PipelineShape("p", {"a": (), "a.b": ()}, {}, {"cell:a.x": "1", "cell:a.b.x": "1"}, (), ())
    new = {"cell:a.y": "1", "cell:a.b.x": "1"}
    found = plan(dotted, PipelineShape("p", {"a": (), "a.b": ()}, {}, new, (), (), formerly={"cell:a.b.z": "x"}))
    assert [cell.path for cell in found.missing] == ["a.x"]  # the x of a.b is another one
