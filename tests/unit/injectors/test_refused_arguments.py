"""A wrong argument of a source is refused where it is given, with what is expected, and not when the first row is read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import millwheel_injectors
from millwheel_injectors import Csv, Exact, TextLines

api: Any = millwheel_injectors
"""Without its types, which refuse these mistakes as well."""
rows: Any = api.IterableSource
spark: Any = api.SparkOutputSource


class Hit(msgspec.Struct):
    page: str
    at: int


def files(*arguments: Any, **options: Any) -> Any:
    return api.FileSource("s", *arguments, **options)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: api.BoundedDisorder(timedelta(seconds=5)),
        r"BoundedDisorder\(bound_us=datetime.timed.*\): give whole",
    ),
    (lambda: api.BoundedDisorder(-5), r"microseconds, at least 0; of seconds that is int\(seconds \* 1_000_000\)"),
    (lambda: api.BoundedDisorder(1.5), "give whole microseconds"),
    (lambda: api.FileCreation("x"), r"FileCreation\(slack_us='x'\): give whole microseconds"),
    (lambda: api.Percentile("0.9"), r"Percentile\('0.9'\): give a share"),
    (
        lambda: files("l", watermark=5),
        r"source s: watermark=5: give a policy, for example BoundedDisorder\(5_000_000\)",
    ),
    (lambda: files("l", watermark=Exact), r"source s: watermark=<class .*Exact'>: give a policy"),
    (lambda: files("l", "csv"), r"source s: format='csv': give a format, for example JsonLines\(dict\)"),
    (lambda: files("l", TextLines), "source s: format=<class .*: give a format"),
    (lambda: files("l", event_time=5), "source s: event_time=5: give the name of a field or a function of a value"),
    (lambda: files("l", record_id=5), "source s: record_id=5: give a function of a value"),
    (lambda: files(5), "source s: paths=5: give a path, a glob pattern or a list of them"),
    (lambda: files([]), r"source s: paths=\[\]: give a path"),
    (lambda: files(""), "source s: paths='': give a path"),
    (lambda: spark("s", "d", "at", 5), "source s: watermark=5: give a policy"),
    (lambda: spark("s", "d", 5), "source s: event_time=5"),
    (lambda: Csv(Hit, delimiter=";;"), r"delimiter=';;'\): give one character"),
    (lambda: Csv(Hit, delimiter=""), r"delimiter=''\): give one character"),
    (lambda: Csv(Hit, quote="''"), r"quote=\"''\"\): give one character, or None"),
    (
        lambda: rows("s", ((c, 1) for c in "ab")),
        r"source s: rows are a generator, .* give a list, or a function",
    ),
    (lambda: rows("s", 5), "source s: rows=5: give a list of"),
    (lambda: rows("s", {"a": 1}), "source s: rows={'a': 1}: give a list of"),
    (lambda: rows("s", "abc"), "source s: rows='abc': give a list of"),
    (lambda: rows("s", ["ab", "cd"]), r"source s: rows are \(value, event time\), and the first is 'ab'"),
    (lambda: rows("s", [("a", 1, 2)]), r"source s: rows are .*, and the first is \('a', 1, 2\)"),
]


@pytest.mark.parametrize(("make", "words"), MISTAKES)
def test_it_says_what_is_expected(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
