"""What crosses a boundary is frozen: events and effects of cores and hosts, messages, calls of the store."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest

from millwheel.core.interval import events as ev
from millwheel.host import alphabet as he
from millwheel.host import requests
from millwheel.host.messages import Message

ON_THE_WAY = {ev.RowsRead}
"""Silence raises the watermark of what was read, before the core has it."""

CALLS = [
    kind for _, kind in inspect.getmembers(requests, inspect.isclass) if issubclass(kind, requests.StoreCall)
]  # fmt: skip
ALPHABET = [*get_args(ev.Event), *get_args(ev.Effect), *get_args(he.HostEvent), *get_args(Message), *CALLS]


def test_the_alphabets_are_found() -> None:
    assert len(ALPHABET) > 90
    assert {ev.CommitDone, ev.Commit, he.RowsArrived, requests.FoldLog} <= {*ALPHABET}


@pytest.mark.parametrize("kind", [kind for kind in dict.fromkeys(ALPHABET) if kind not in ON_THE_WAY])
def test_a_value_that_crosses_a_boundary_is_frozen(kind: Any) -> None:
    assert kind.__struct_config__.frozen


@pytest.mark.parametrize("kind", sorted(ON_THE_WAY, key=str))
def test_the_exceptions_are_still_needed(kind: Any) -> None:
    assert not kind.__struct_config__.frozen
