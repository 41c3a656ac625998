"""Events and effects are plain values; what counts is not."""

from __future__ import annotations

from millwheel.core.interval.events import Counters


def test_every_counter_is_added() -> None:
    names = Counters.__struct_fields__
    total = Counters(*range(1, len(names) + 1))
    total.add(Counters(*(100 * n for n in range(1, len(names) + 1))))
    assert [getattr(total, name) for name in names] == [101 * n for n in range(1, len(names) + 1)]
