"""A computation gets a combiner: what is planned, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from millwheel import JsonCoder, MsgpackCoder, Pipeline, Stream, subscribe
from millwheel.errors import IncompatibleStore
from millwheel.library import Combiner, Fixed, Flow, Pane, count
from millwheel.ports import PipelineShape
from millwheel.shape import CombinedBy
from millwheel_injectors import IterableSource
from millwheel_storage.schema.evolution import plan
from tests.unit.storage.samples import Total, gathering, sales, shops

panes = Stream("panes", MsgpackCoder(Pane[int]))


def test_a_gathering_that_comes_later_is_planned() -> None:
    found = plan(shops(), shops(combiner=gathering()))
    found.check()
    assert found.changes == [
        "computation 'Total' gets a combiner, 'Total.parts', which takes over what is on its way to it"
    ]
    assert found.subscriptions == {"Total<sales": "Total.parts<sales"}
    assert found.shape.combiners == {"Total": CombinedBy("Total.parts", "000#")}
    again = plan(found.shape, shops(combiner=gathering()))
    again.check()
    assert not again.handovers


def test_it_may_come_with_another_name() -> None:
    found = plan(shops(), shops(combiner=gathering(), name="Sum", formerly="Total"))
    found.check()
    assert found.subscriptions == {"Total<sales": "Sum.parts<sales"}


def test_a_combiner_does_not_go_while_its_computation_gets_another_name() -> None:
    with pytest.raises(IncompatibleStore, match=r"'Total.parts', the combiner of 'Sum'.*keeps its name and the stream"):
        plan(shops(combiner=gathering()), shops(name="Sum", formerly="Total")).check()
    assert len(plan(shops(combiner=gathering()), shops(name="Sum", formerly="Total")).refusals) == 1


def test_a_computation_of_several_inputs_gets_none() -> None:
    other = Stream("other", JsonCoder(str))
    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("src", []), into=sales)
    pipeline.inject(IterableSource("more", []), into=other)
    pipeline.add(Total, [subscribe(sales, str), subscribe(other, str)])
    found = plan(pipeline.graph().shape(), shops(combiner=gathering(), split_keys=()))
    assert not found.handovers
    with pytest.raises(
        IncompatibleStore, match=r"subscription 'Total<other', which the pipeline no longer has.*reads all inputs"
    ):
        found.check()


def test_a_computation_that_happens_to_have_such_a_name_is_no_combiner() -> None:
    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("src", []), into=sales)
    merged = Stream("Total.parts", JsonCoder(str))
    pipeline.add(Total, [subscribe(sales, str)], [merged], name="Total.parts")
    pipeline.add(Total, [subscribe(merged, str)], split_keys=["m"])
    pipeline.add(Total, [subscribe(sales, str)], name="Also", split_keys=["k"])
    with pytest.raises(IncompatibleStore, match="only a combiner that reads all inputs of its computation"):
        plan(shops(), pipeline.graph().shape()).check()


def test_a_computation_of_that_name_that_the_store_knows_gets_nothing_of_another() -> None:
    known = msgspec.structs.replace(shops(), computations={**shops().computations, "Total.parts": ()})
    assert not plan(known, shops(combiner=gathering())).handovers


def views(combiner: Combiner | None) -> PipelineShape:
    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("src", []), into=sales)
    keyed = Flow(pipeline).read(sales).key_by(str)
    keyed.window(Fixed(minutes=1)).aggregate(count(), name="views", combiner=combiner).to(panes)
    return pipeline.graph().shape()


def test_a_combiner_of_the_library_comes_later_too() -> None:
    found = plan(views(None), views(Combiner(shards=3)))
    found.check()
    assert found.changes == [
        "computation 'views' gets a combiner, 'views.parts', which takes over what is on its way to it"
    ]
    assert found.subscriptions == {"views<sales": "views.parts<sales"}
    assert found.shape.combiners == {"views": CombinedBy("views.parts", "", "#0", ("source:src",))}
    assert not found.recuts, "all ids are copied to all intervals"
    again = plan(found.shape, views(Combiner(shards=3)))
    again.check()
    assert not again.moves()
