"""A wrong argument of a chain or of a coder is refused where it is given, with what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millwheel
from millwheel import JsonCoder, Pipeline, Stream, Table
from millwheel.errors import WiringError
from millwheel.library import Combiner, Fixed, Flow, Interval, LookUp, Service, aggregation, count, top

NUMBERS = Stream("numbers", JsonCoder(int))
api: Any = millwheel
"""Without its types, which refuse these mistakes as well."""


def flow() -> Any:
    return Flow(Pipeline("p"))


def chain() -> Any:
    return flow().read(NUMBERS)


def keyed() -> Any:
    return chain().key_by(str)


async def waits(value: int) -> bool:
    return value > 1


def yields(value: int) -> Any:
    yield value > 1


TABLE = Table("t", {"key": "text"}, ("key",))

MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: api.JsonCoder(5), r"JsonCoder\(5\): give a type, for example JsonCoder\(int\)"),
    (lambda: api.JsonCoder("int"), r"JsonCoder\('int'\): give a type"),
    (lambda: api.JsonCoder([int]), r"JsonCoder\(\[<class 'int'>\]\): give a type"),
    (lambda: api.MsgpackCoder(lambda: 1), r"MsgpackCoder\(<function .*\): give a type"),
    (lambda: api.ProtobufCoder(5), r"ProtobufCoder\(5\): give a class of protobuf messages"),
    (lambda: api.ProtobufCoder(int), r"ProtobufCoder\(<class 'int'>\): give a class of protobuf messages"),
    (
        lambda: keyed().look_up(5),
        r"look_up\(...\) needs a LookUp, got 5; for example LookUp\(query, Row, minutes\(5\)\)",
    ),
    (lambda: keyed().look_up(LookUp), r"look_up\(...\) needs a LookUp, got <class"),
    (
        lambda: aggregation("a", int, max, max, int, JsonCoder(int), JsonCoder(int)),
        r"aggregation\('a'\): results=<.*: give the type of the results, not a coder",
    ),
    (
        lambda: aggregation("a", int, max, max, int, int, int),  # type: ignore[arg-type]
        r"aggregation\('a'\): accumulator=<class 'int'>: give its coder, for example JsonCoder\(int\)",
    ),
    (lambda: flow().read("s"), r"read\(...\) needs a Stream, got 's'"),
    (
        lambda: keyed().window(Fixed(minutes=1), lateness=60),
        r"the allowed lateness has a length of 60 us, .*: write seconds\(60\) for seconds, or timedelta\(microseconds=60\)",
    ),
    (lambda: keyed().deduplicate(60, str), r"an id comes again has a length of 60 us"),
    (lambda: keyed().running(count(), lateness=5), r"the allowed lateness has a length of 5 us"),
    (lambda: keyed().distinct_until_changed(forget_after=5), r"a key is forgotten has a length of 5 us"),
    (lambda: Interval(before=60), r"how much older a partner may be has a length of 60 us"),
    (lambda: Service(lambda: str, str, pause=1), r"the pause after a failed attempt has a length of 1 us"),
    (lambda: top(1.5, len, str), r"top\(1.5\): give a number of values, at least 1"),  # type: ignore[arg-type]
    (lambda: top(True, len, str), r"top\(True\): give a number of values"),
    (lambda: Combiner(3, by=5), r"Combiner\(...\) needs a function of a value, got 5"),  # type: ignore[arg-type]
    (lambda: chain().filter(5), r"filter\(...\) needs a function of a value, got 5"),
    (lambda: chain().filter(waits), r"filter\(...\) needs a plain function, got <function waits .*, which is async"),
    (lambda: chain().filter(yields), r"filter\(...\) needs a plain function, got <function yields .*or yields"),
    (lambda: chain().branch(waits), r"filter\(...\) needs a plain function"),
    (lambda: chain().map(waits), r"map\(...\) needs a plain function"),
    (lambda: chain().key_by(waits), r"key_by\(...\) needs a plain function"),
    (lambda: chain().map(5), r"map\(...\) needs a function of a value, got 5"),
    (lambda: chain().map(str, 5), r"map\(...\) needs a coder, got 5; for example JsonCoder\(int\)"),
    (lambda: chain().flat_map(5), r"flat_map\(...\) needs a function of a value, got 5"),
    (lambda: chain().key_by("name"), r"key_by\(...\) needs a function of a value, got 'name'"),
    (lambda: chain().union(5), r"union\(...\) needs chains, got 5"),
    (lambda: keyed().deduplicate(5, 5), r"deduplicate\(...\) needs a function of a value, got 5"),
    (lambda: keyed().distinct_until_changed(5), r"distinct_until_changed\(...\) needs a function of a value, got 5"),
    (lambda: keyed().distinct_until_changed(str, 5), r"distinct_until_changed\(...\) needs a coder, got 5"),
    (lambda: keyed().running(count(), last="x"), r"running\(...\): last='x': give a number of values, at least 1"),
    (lambda: keyed().running(count(), order=5), r"running\(...\) needs a function of a value, got 5"),
    (lambda: keyed().append_to("t", 5, str), r"append_to\(...\): columns=5: give column names and SQL types"),
    (lambda: keyed().append_to("t", {"a": "text"}, 5), r"append_to\(...\) needs a function of a value, got 5"),
    (lambda: keyed().latest_to("t", str), "sink needs a Table, got 't'"),
    (lambda: keyed().latest_to(TABLE, 5), r"latest_to\(...\) needs a function of a value, got 5"),
    (lambda: keyed().upsert_to(5, str), "sink needs a Table, got 5"),
    (lambda: keyed().upsert_to(TABLE, 5), r"upsert_to\(...\) needs a function of a value, got 5"),
    (lambda: keyed().join(5, Fixed(minutes=1)), r"join\(...\) needs values by key, got 5: give a chain with .key_by"),
    (lambda: keyed().join_as_of(5), r"join_as_of\(...\) needs values by key, got 5"),
    (lambda: keyed().join_one(5), r"join_one\(...\) needs values by key, got 5"),
    (lambda: keyed().join_aggregate(5, 5, count()), r"join_aggregate\(...\) needs values by key, got 5"),
    (
        lambda: keyed().join_aggregate(keyed(), 5, count()),
        r"join_aggregate\(...\): within=5: give an Interval, or a function of a value",
    ),
    (lambda: flow().join_all(5, Fixed(minutes=1)), r"join_all\(...\) needs a list of chains, got 5"),
    (
        lambda: flow().join_all((keyed(), 5), Fixed(minutes=1)),
        r"join_all\(...\) needs values by key, got 5",
    ),
]


@pytest.mark.parametrize(("make", "words"), MISTAKES)
def test_it_says_what_is_expected(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(WiringError, match=words):
        make()
