"""Counters add up, each to its own."""

from __future__ import annotations

import msgspec

from millwheel.core.interval.counters import Counters


def test_every_counter_is_added_to_its_own() -> None:
    names = Counters.__struct_fields__
    total = Counters(**{name: 100 * place for place, name in enumerate(names)})
    total.add(Counters(**{name: place + 1 for place, name in enumerate(names)}))
    assert msgspec.structs.asdict(total) == {name: 101 * place + 1 for place, name in enumerate(names)}


def test_what_is_added_is_not_changed() -> None:
    more = Counters(records=3)
    Counters(records=1).add(more)
    assert more == Counters(records=3)
