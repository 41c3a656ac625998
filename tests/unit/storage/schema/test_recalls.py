"""An aggregation of the library loses its combiner: what is planned."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millwheel.errors import IncompatibleStore
from millwheel.library import Combiner
from millwheel.ports import PipelineShape
from millwheel_storage.schema.drops import Drop
from millwheel_storage.schema.evolution import plan
from millwheel_storage.schema.recalls import Recall, recalls
from tests.unit.storage.schema.test_handovers import views

WITH = views(Combiner(3))
BACK = Recall(
    "views",
    "views.parts",
    {"views.parts<sales": "views<sales"},
    "views<views.parts.out",
    "accumulators",
    "accumulators",
)


def test_it_is_planned_and_leaves_nothing_of_the_first_step() -> None:
    found = plan(WITH, views(None))
    found.check()
    assert found.changes == ["computation 'views' has no combiner any more, and takes over what 'views.parts' has"]
    assert found.recalls == [BACK]
    assert found.subscriptions == {"views.parts<sales": "views<sales"}
    assert found.drops == [Drop("views.parts", ()), Drop("views", ("views<views.parts.out",), whole=False)]
    assert (found.moves(), found.recuts, found.shape.combiners) == (True, [], {})
    again = plan(found.shape, views(None))
    assert (again.changes, again.refusals, again.moves()) == ([], [], False)


def test_cells_are_where_they_are_stored() -> None:
    placed = msgspec.structs.replace(WITH, places={"views.accumulators": "a#2", "views.parts.accumulators": "b#3"})
    (found,) = recalls(placed, views(None))
    assert (found.place, found.place_of_parts) == ("a#2", "b#3")


@pytest.mark.parametrize(
    "change",
    [
        {"computations": {**views(None).computations, "views.parts": ()}},
        {"computations": {"other": ()}},
        {"subscriptions": {"views<returns": "returns"}},
    ],
    ids=["the first step stays", "the aggregation goes", "another input"],
)
def test_not_with_another_change(change: dict[str, Any]) -> None:
    assert not [*recalls(WITH, msgspec.structs.replace(views(None), **change))]


def test_not_when_there_is_nothing_to_take_over() -> None:
    for left in ({}, {"views<views.parts.out": "views.parts.out"}, {"views.parts<sales": "sales"}):
        assert not [*recalls(msgspec.structs.replace(WITH, subscriptions=left), views(None))]


def earlier(shape: PipelineShape) -> PipelineShape:
    """As a release wrote it in which a combiner of the library could not go."""
    coders = {
        name: it.replace("as count of fixed", "as count of parts of fixed") if name.startswith("cell:views.a") else it
        for name, it in shape.coders.items()
    }
    return msgspec.structs.replace(shape, coders=coders, combiners={})


def test_a_store_of_an_earlier_release_is_opened_with_it_first() -> None:
    stored = earlier(WITH)
    assert stored.coders != WITH.coders
    with pytest.raises(IncompatibleStore, match=r"run the version with the Combiner once more by this millwheel"):
        plan(stored, views(None)).check()
    found = plan(stored, WITH)
    found.check()
    assert not found.moves()
    assert found.shape.combiners == WITH.combiners
    plan(found.shape, views(None)).check()


def test_other_windows_are_refused_as_ever() -> None:
    with pytest.raises(IncompatibleStore, match=r"cell:views.accumulators is stored as 'count of fixed"):
        plan(WITH, msgspec.structs.replace(
            views(None), coders={name: it.replace("fixed", "global") for name, it in views(None).coders.items()}
        )).check()  # fmt: skip
