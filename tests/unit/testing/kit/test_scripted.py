"""Scripts of sources that change while they are read."""

from __future__ import annotations

from millwheel.testing.kit.scripted import Script


def test_rows_that_nobody_has_read_come_later_and_are_as_much_younger() -> None:
    rows = [("a", 10), ("b", 15), ("c", 20), ("d", 90)]
    script = Script("one", rows, [11, 16, 21, 95], late=frozenset({2}), read_to=1)
    script.delay(50)
    assert script.arrivals == [11, 50, 50, 95]
    assert script.rows == [("a", 10), ("b", 49), ("c", 20), ("d", 90)]


def test_an_end_keeps_what_was_read_and_what_comes_together_with_it() -> None:
    script = Script("one", [(n, n) for n in range(10)], list(range(10)), read_to=5, together=4)
    script.end()
    assert len(script.rows) == 8
