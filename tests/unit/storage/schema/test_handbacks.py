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


def test_the_refusal_says_what_to_do() -> None:
    assert "run the version with the combiner once more with Checkpoints()" in refusal(BACK)
