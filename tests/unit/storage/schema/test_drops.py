"""What is declared to go: which rows these are, and that nothing else goes."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.errors import IncompatibleStore
from millwheel.shape import PipelineShape
from millwheel_storage.schema.drops import Drop, drops, heir, without
from millwheel_storage.schema.evolution import plan
from tests.unit.storage.samples import gathering, shops


def reading(name: str = "p", *streams: str) -> PipelineShape:
    """`shops`, in which "Total" reads more streams."""
    base = shops(name)
    return msgspec.structs.replace(base, subscriptions={**base.subscriptions, **{f"Total<{s}": s for s in streams}})


def test_a_computation_goes_with_its_inputs_its_cells_and_its_combiner() -> None:
    stored = shops(combiner=gathering())
    stored = msgspec.structs.replace(
        stored,
        coders={**stored.coders, "cell:Total.n": "json/1", "cell:Also.n": "json/1"},
        places={"Total.n": "m", "Also.n": "k"},
        retired=("Total.m", "Also.old"),
        key_versions={"Total.parts<sales": "2", "Also<sales": "3"},
    )
    shape = msgspec.structs.replace(
        stored, computations={"Also": ("k",)}, subscriptions={"Also<sales": "sales"}, combiners={}, gone=("Total",)
    )
    found = [*drops(stored, shape)]
    assert found == [Drop("Total", ("Total<Total.parts",)), Drop("Total.parts", ("Total.parts<sales",))]
    assert [*drops(stored, msgspec.structs.replace(shape, gone=("Total", "Total.parts")))] == found, "each goes once"
    left = without(stored, found)
    assert left.computations == {"Also": ("k",)}
    assert left.subscriptions == {"Also<sales": "sales"}
    assert {name for name in left.coders if name.startswith("cell:")} == {"cell:Also.n"}
    assert (left.places, left.retired) == ({"Also.n": "k"}, ("Also.old",))
    assert (left.combiners, left.key_versions) == ({}, {"Also<sales": "3"})


def test_a_plan_says_so_and_needs_an_empty_log() -> None:
    stored = shops()
    shape = msgspec.structs.replace(
        stored, computations={"Total": ("m",)}, subscriptions={"Total<sales": "sales"}, gone=("Also", "Never")
    )
    found = plan(stored, shape)
    found.check()
    assert found.changes == ["computation 'Also' is dropped, with its state, its timers and what is on its way to it"]
    assert found.moves()
    again = plan(found.shape, msgspec.structs.replace(shape, gone=()))
    assert (again.changes, again.refusals, again.moves()) == ([], [], False)


def test_an_input_goes_alone() -> None:
    stored = reading("p", "sales#2", "returns")
    shape = msgspec.structs.replace(shops(), gone=("Total<returns", "Total<sales"))
    found = plan(stored, shape)
    found.check()
    assert found.drops == [
        Drop("Total", ("Total<returns",), whole=False),
        Drop("Total", ("Total<sales#2",), whole=False),
    ]
    assert found.changes == [
        "input 'Total<returns' is dropped, with what is on its way to it",
        "input 'Total<sales#2' is dropped, with what is on its way to it",
    ]
    assert "Total<sales" in without(stored, found.drops).subscriptions


def test_a_renamed_computation_goes_by_its_new_name() -> None:
    stored = reading("p", "returns")
    shape = msgspec.structs.replace(shops(name="Sum", formerly="Total"), gone=("Sum<returns",))
    found = plan(stored, shape)
    found.check()
    assert found.drops == [Drop("Sum", ("Sum<returns",), whole=False)]


@pytest.mark.parametrize("gone", [(), ("Total",), ("Also<sales",)])
def test_what_is_not_declared_to_go_is_refused(gone: tuple[str, ...]) -> None:
    stored = shops()
    shape = msgspec.structs.replace(
        stored, computations={"Total": ("m",)}, subscriptions={"Total<sales": "sales"}, gone=gone
    )
    with pytest.raises(IncompatibleStore, match=r"pipeline\.drop\('Also'\)"):
        plan(stored, shape).check()


def test_an_input_that_is_not_declared_to_go_is_refused() -> None:
    stored = reading("p", "returns")
    with pytest.raises(IncompatibleStore, match=r"pipeline\.drop\('Total', input='returns'\)"):
        plan(stored, shops()).check()


def test_what_is_declared_to_go_and_is_there_all_the_same_stays() -> None:
    """Or was there never."""
    for gone in (("Total",), ("Total<sales",), ("Never",), ("Never<sales",), ("Total<never",)):
        shape = msgspec.structs.replace(shops(), gone=gone)
        assert [*drops(shops(), shape)] == []
        assert plan(shops(), shape).changes == []


def test_the_schemas_of_its_cells_go_and_no_others() -> None:
    schemas = {"cell:Also.n": "int", "cell:Total.n": "int", "stream:sales": "str"}
    stored = msgspec.structs.replace(shops(), schemas=schemas)
    left = without(stored, [Drop("Also", ("Also<sales",)), Drop("Total", ("Total<sales",), whole=False)])
    assert left.schemas == {name: schemas[name] for name in ("cell:Total.n", "stream:sales")}


def test_names_with_dots_are_told_apart_when_one_goes() -> None:
    stored = PipelineShape(
        "p", {"a": (), "a.b": ()}, {"a<s": "s", "a.b<s": "s"},
        {"cell:a.n": "json/1", "cell:a.b.n": "json/1"}, (), (),
        places={"a.n": "m", "a.b.n": "m"},
    )  # fmt: skip
    left = without(stored, [Drop("a", ("a<s",))])
    assert ([*left.computations], [*left.coders], [*left.places]) == (["a.b"], ["cell:a.b.n"], ["a.b.n"])


def test_only_who_still_reads_a_stream_goes_on_with_what_was_sent_to_it() -> None:
    assert heir("Also<sales", shops()) == "Also"
    assert heir("Also<gone", shops()) is None


def test_a_combiner_is_not_dropped_without_its_computation() -> None:
    """It holds values that the computation has not got yet, and hands them back."""
    shape = msgspec.structs.replace(shops(), gone=("Total.parts", "Total<Total.parts"))
    found = plan(shops(combiner=gathering()), shape)
    assert [it.parts for it in found.handbacks] == ["Total.parts"]
    assert [*drops(shops(combiner=gathering()), shape)] == []
