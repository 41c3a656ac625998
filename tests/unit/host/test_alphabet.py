"""What crosses a boundary is frozen: events and effects of cores and hosts, messages, calls of the store."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest

from millwheel.core.interval import events as ev
from millwheel.host import alphabet as he
from millwheel.host import requests
from millwheel.host.messages import Message

CALLS = [
    kind for _, kind in inspect.getmembers(requests, inspect.isclass) if issubclass(kind, requests.StoreCall)
]  # fmt: skip
ALPHABET = [*get_args(ev.Event), *get_args(ev.Effect), *get_args(he.HostEvent), *get_args(Message), *CALLS]


def test_the_alphabets_are_found() -> None:
    assert len(ALPHABET) > 90
    assert {ev.CommitDone, ev.Commit, he.RowsArrived, requests.FoldLog} <= {*ALPHABET}


@pytest.mark.parametrize("kind", [*dict.fromkeys(ALPHABET)])
def test_a_value_that_crosses_a_boundary_is_frozen(kind: Any) -> None:
    assert kind.__struct_config__.frozen
