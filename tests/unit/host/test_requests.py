"""What a host asks of the store: each request is one call, with all that the request holds."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from millwheel.core.interval import events as ev
from millwheel.host import requests
from millwheel.host.requests import ClusterCall, FindIds, StoreCall
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId
from millwheel.ports import ClusterStore, Store
from millwheel.testing.world.calls import run
from millwheel_storage.memory import MemoryStore

CALLS: list[type[StoreCall]] = [
    value
    for _, value in inspect.getmembers(requests, inspect.isclass)
    if issubclass(value, StoreCall) and value not in (StoreCall, ClusterCall)
]
EFFECTS = ("load", "asked", "fetch")
"""Fields in which a request carries what a core has asked."""
TWO_CALLS = {FindIds}


class Recorder(MemoryStore):
    """A store that notes what it is asked, and answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in {*vars(Store), *vars(ClusterStore)} or name.startswith("_"):
            return super().__getattribute__(name)

        async def note(*given: Any, **named: Any) -> None:
            self.asked.append((name, (*given, *named.values())))

        return note


def made(kind: type[msgspec.Struct]) -> tuple[Any, list[object]]:
    """A request, or an effect in it, and all the values that it holds."""
    given: dict[str, Any] = {}
    held: list[object] = []
    for field in msgspec.structs.fields(kind):
        if field.name in EFFECTS:
            given[field.name], inner = made(field.type)
            held += inner
        else:
            given[field.name] = value = object()
            held.append(value)
    return kind(**given), held


@pytest.mark.parametrize("kind", [kind for kind in CALLS if kind not in TWO_CALLS])
def test_a_request_is_one_call_with_all_that_it_holds(kind: type[StoreCall]) -> None:
    request, held = made(kind)
    store = Recorder()
    run(request.call(store))
    ((_, given),) = store.asked
    assert [value for value in held if value not in given] == []


def test_every_request_has_a_name_for_logs_and_faults() -> None:
    assert [kind.__name__ for kind in CALLS if not kind.step] == []
    assert [kind.__name__ for kind in CALLS if not kind.patient] == ["OpenPipeline"], "before it, nothing has begun"


@pytest.mark.parametrize(
    ("sequences", "outside", "asked"),
    [([3], [b"x"], ["find_ids", "find_outside_ids"]), ([3], [], ["find_ids"]), ([], [b"x"], ["find_outside_ids"])],
)
def test_the_store_is_asked_only_for_the_ids_that_somebody_is_unsure_of(
    sequences: list[int], outside: list[bytes], asked: list[str]
) -> None:
    numbers = [*map(SequenceNumber, sequences)]
    lookup = ev.LookupIds(IntervalId(9), SubscriptionId(1), ProducerId(2), numbers, outside, 50)
    store = Recorder()
    run(FindIds(IntervalId(1), lookup).call(store))
    assert [name for name, _ in store.asked] == asked
