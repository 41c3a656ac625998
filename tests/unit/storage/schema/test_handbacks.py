"""A computation loses its combiner: what is planned."""

from __future__ import annotations

import msgspec

from millwheel_storage.schema.drops import Drop
from millwheel_storage.schema.evolution import plan
from millwheel_storage.schema.handbacks import Handback, handbacks, refusal
from tests.unit.storage.samples import gathering, shops

BACK = Handback("Total", "Total.parts", "Total.parts<sales", "Total<sales", "Total<Total.parts")


def test_it_is_planned_and_leaves_nothing_of_the_combiner() -> None:
    found = plan(shops(combiner=gathering()), shops())
    found.check()
    assert found.changes == ["computation 'Total' has no combiner any more, and takes over what 'Total.parts' has"]
    assert found.handbacks == [BACK]
    assert found.subscriptions == {"Total.parts<sales": "Total<sales"}
    assert found.drops == [Drop("Total.parts", ()), Drop("Total", ("Total<Total.parts",), whole=False)]
    assert found.moves()
    assert found.shape.combiners == {}
    assert [name for name in found.shape.coders if "parts" in name] == ["stream:Total.parts"]
    again = plan(found.shape, shops())
    assert (again.changes, again.refusals, again.moves()) == ([], [], False)


def test_not_when_the_computation_reads_another_stream() -> None:
    shape = msgspec.structs.replace(shops(), subscriptions={"Total<returns": "returns", "Also<sales": "sales"})
    assert [*handbacks(shops(combiner=gathering()), shape)] == []
    assert plan(shops(combiner=gathering()), shape).refusals


def test_not_while_the_combiner_stays_or_when_there_is_nothing_to_take_over() -> None:
    stored, both = shops(combiner=gathering()), shops(combiner=gathering())
    both = msgspec.structs.replace(both, subscriptions={**both.subscriptions, "Total<sales": "sales"})
    assert [*handbacks(stored, both)] == [], "the combiner stays"
    assert [*handbacks(both, shops())] == [], "the computation has read the stream beside its combiner"
    for name in ("Total.parts<sales", "Total<Total.parts"):
        left = {sub: stream for sub, stream in stored.subscriptions.items() if sub != name}
        assert [*handbacks(msgspec.structs.replace(stored, subscriptions=left), shops())] == []
    gone = {name: cells for name, cells in stored.computations.items() if name != "Total.parts"}
    assert [*handbacks(msgspec.structs.replace(stored, computations=gone), shops())] == []
    assert [*handbacks(stored, shops())] == [BACK]


def test_the_refusal_says_what_to_do() -> None:
    assert "run the version with the combiner once more with Checkpoints()" in refusal(BACK)
