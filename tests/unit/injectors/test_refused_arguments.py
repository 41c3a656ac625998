"""A wrong argument of a source is refused where it is given, with what is expected, and not when the first row is read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import millwheel_injectors
from millwheel import Stream, TextCoder
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


def pushed(*arguments: Any, **options: Any) -> Any:
    return api.PushSource(Stream("s", TextCoder()), *arguments, **options)


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
    (lambda: rows("s", [], id_slack="x"), "source s: id_slack='x': give whole microseconds"),
    (lambda: rows("s", [], record_id=5), "source s: record_id=5: give a function of a value"),
    (lambda: rows("s", [], 5), "source s: watermark=5: give a policy"),
    (lambda: api.Exact(5), r"Exact takes no arguments, got 5: write Exact\(\)"),
    (lambda: api.Exact(bound_us=5), r"Exact takes no arguments, got bound_us: write Exact\(\)"),
    (lambda: api.FileCreation(5, "x"), r"FileCreation\(created='x'\): give a function of a path"),
    (lambda: api.Percentile(0.99, "x"), "Percentile: window='x': give a number of rows"),
    (lambda: files("l", quiet_us=5), "source s: quiet_us is for files that grow: add tail=True, or leave it out"),
    (lambda: files("l", idle_after_us=5), "source s: idle_after_us is for files that grow: add tail=True"),
    (lambda: files("l", later_files_not_before=5), "source s: later_files_not_before is for files that grow"),
    (lambda: spark("s", "d", "at", idle_after_us=5), "source s: idle_after_us is for files that grow"),
    (
        lambda: spark("s", "d", "at", later_files_not_before=5),
        "source s: later_files_not_before is for files that grow",
    ),
    (lambda: files("l", tail=True, quiet_us="5"), "source s: quiet_us='5': give whole microseconds"),
    (lambda: files("l", tail=True, quiet_us=timedelta(seconds=5)), "source s: quiet_us=datetime.*: give whole"),
    (lambda: files("l", tail=True, idle_after_us=-5), "source s: idle_after_us=-5: give whole microseconds"),
    (lambda: files("l", id_slack=1.5), "source s: id_slack=1.5: give whole microseconds"),
    (
        lambda: files("l", tail=True, later_files_not_before="x"),
        "source s: later_files_not_before='x': give a time in whole microseconds, or a function without arguments",
    ),
    (lambda: files("l", tail="no"), "source s: tail='no': give True or False"),
    (lambda: files("l", ordered="no"), "source s: ordered='no': give True or False"),
    (lambda: files("l", sort_key=5), "source s: sort_key=5: give a function of a path"),
    (lambda: files("l", rejects=5), "source s: rejects=5: give a path"),
    (lambda: files("l", rejects=""), "source s: rejects='': give a path"),
    (lambda: files([5]), r"source s: paths=\[5\]: give a path"),
    (lambda: spark("s", 5, "at"), "source s: directory=5: give a path"),
    (lambda: spark("s", "", "at"), "source s: directory='': give a path"),
    (lambda: spark("s", "d", "at", type=5), "source s: type=5: give a type, for example dict"),
    (lambda: spark("s", "d", "at", columns="at"), "source s: columns='at': give a list of names"),
    (lambda: spark("s", "d", "at", columns=5), "source s: columns=5: give a list of names"),
    (lambda: spark("s", "d", "at", format="csv"), "source s: format='csv': give a format"),
    (lambda: spark("s", "d", "at", record_id=5), "source s: record_id=5: give the name of a column or a function"),
    (lambda: spark("s", "d", "at", tail="no"), "source s: tail='no': give True or False"),
    (lambda: api.JsonLines(5), r"JsonLines\(5\): give a type, for example dict"),
    (lambda: api.JsonLines("Hit"), r"JsonLines\('Hit'\): give a type"),
    (lambda: api.Csv(5), r"Csv\(5\): give a type"),
    (lambda: Csv(Hit, columns="at"), r"Csv\(columns='at'\): give a list of names"),
    (lambda: api.Csv(Hit, columns=5), r"Csv\(columns=5\): give a list of names"),
    (lambda: Csv(Hit, columns=["page", "page"]), r"Csv\(columns=\['page', 'page'\]\): two columns have one name"),
    (lambda: api.TextLines(5), "encoding 5: give the name of an encoding, for example 'utf-8'"),
    (lambda: Csv(Hit, encoding="utf-9"), "encoding 'utf-9': give the name of an encoding"),
    (lambda: pushed(7100), "source s: listen=7100: give host:port, such as 127.0.0.1:7100"),
    (lambda: pushed("localhost"), "source s: listen='localhost': give host:port"),
    (lambda: api.PushSource("s", "127.0.0.1:0"), "PushSource needs a Stream, got 's'"),
    (lambda: pushed("127.0.0.1:0", certificates="certs"), r"source s: certificates='certs': give \(directory, name\)"),
    (lambda: pushed("127.0.0.1:0", certificates=("certs",)), r"source s: certificates=\('certs',\): give \(directory"),
    (lambda: pushed("0.0.0.0:7100"), "source s: listen='0.0.0.0:7100' can .* other machines: give certificates"),
    (lambda: pushed("127.0.0.1:0", watermark=5), r"source s: watermark=5: give BoundedDisorder"),
    (lambda: pushed("127.0.0.1:0", watermark=Exact()), r"source s: watermark=Exact\(\): give BoundedDisorder"),
    (lambda: pushed("127.0.0.1:0", id_slack=-1), "source s: id_slack=-1: give whole microseconds"),
    (lambda: pushed("127.0.0.1:0", id_slack=0), "source s: id_slack=0: clients bring again what got no answer"),
    (lambda: pushed("127.0.0.1:0", idle_after_us="x"), "source s: idle_after_us='x': give whole microseconds"),
]


@pytest.mark.parametrize(("make", "words"), MISTAKES)
def test_it_says_what_is_expected(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
