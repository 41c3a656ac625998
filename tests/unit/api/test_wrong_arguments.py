"""A wrong argument in a hook is answered with what is expected, not with an attribute that is missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from millwheel import (
    Computation,
    JsonCoder,
    MapCell,
    MsgpackCoder,
    Pipeline,
    Stream,
    Table,
    TextCoder,
    ValueCell,
    limits,
    subscribe,
)
from millwheel.testing import HookFailed, Stepper

texts = Stream("texts", TextCoder())
out = Stream("out", TextCoder())
odd = Stream("odd", MsgpackCoder(int))
KEYS: dict[int, Any] = {1: "\ud800", 2: 5, 3: "k" * (limits.KEY_LIMIT_BYTES + 1)}
rows = Table("rows", {"k": "text", "n": "bigint"}, ("k",))


@dataclass
class Total:
    k: str
    n: int


totals = Table("totals", Total, ("k",))


class Number:
    """A number of another library, which JSON does not know."""

    def __repr__(self) -> str:
        return "a number"


Act = Callable[[Any, Any], None]


class Wrong(Computation[str]):
    act: Act
    entries = MapCell(JsonCoder(int))
    number = ValueCell(MsgpackCoder(int), default=0)

    def ProcessRecord(self, context: Any, record: Any) -> None:
        type(self).act(self, context)

    def ProcessTimer(self, context: Any, timer: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            lambda it, context: context.produce(odd, 1),
            r"CoderError: key on 'odd' is not valid Unicode: '.ud800': surrogates",
        ),
        (lambda it, context: context.produce(odd, 2), "WiringError: key extractor on 'odd' returned int, not str: 5"),
        (lambda it, context: context.produce(odd, 3), "LimitError: key of 1025 bytes on 'odd'"),
        (lambda it, context: context.produce(odd, 2**70), "CoderError: .*cannot encode 1180591620717411303424"),
        (lambda it, context: it.number.set(2**70), "CoderError: .*cannot encode 1180591620717411303424"),
        (
            lambda it, context: context.set_timer(5, "close"),
            "timer 5: the first argument is a tag, which is text, not int",
        ),
        (lambda it, context: context.set_timer(5, 7), r"for example set_timer\('close', 5\)"),
        (lambda it, context: context.cancel_timer(None), "timer None: the first argument is a tag"),
        (lambda it, context: it.entries.set(3, 1), "map entry 3 is int: entries are text"),
        (lambda it, context: it.entries.get(3), "map entry 3 is int"),
        (
            lambda it, context: context.produce("out", "x"),
            r"produce\('out', …\): the first argument is a Stream, not str",
        ),
        (
            lambda it, context: context.upsert("out", {}),
            "'out' is str: the first argument is a Table",
        ),
        (lambda it, context: context.delete("out", {}), "'out' is str: the first argument is a Table"),
        (lambda it, context: context.produce(None, "x"), "the first argument is a Stream, not NoneType"),
        (lambda it, context: context.set_timer("\ud800", 5), r"CoderError: timer tag '.ud800' is not valid Unicode"),
        (lambda it, context: context.cancel_timer("\ud800"), r"CoderError: timer tag '.ud800' is not valid Unicode"),
        (lambda it, context: it.entries.set("\ud800", 5), r"CoderError: map entry '.ud800' is not valid Unicode"),
        (lambda it, context: it.entries.set("", 5), f"LimitError: map entry '': 1 to {limits.KEY_LIMIT_BYTES} bytes"),
        (
            lambda it, context: it.entries.set("é" * 513, 5),
            f"LimitError: map entry 'é+: 1 to {limits.KEY_LIMIT_BYTES} bytes",
        ),
        (lambda it, context: it.entries.get_many("ab"), r"WiringError: get_many\('ab'\): give a list of entries"),
        (
            lambda it, context: context.upsert(rows, ["k", 1]),
            r"WiringError: row for table 'rows' is \['k', 1\]: give a mapping of columns \['k', 'n'\] to values",
        ),
        (lambda it, context: context.upsert(rows, None), "row for table 'rows' is None: give a mapping of columns"),
        (
            lambda it, context: context.upsert(rows, {1: "k", "n": 2}),
            r"row for table 'rows' has columns \[1, 'n'\], declared are \['k', 'n'\]",
        ),
        (
            lambda it, context: context.upsert(rows, {"k": "k", "n": Number()}),
            "RowError: row for table 'rows': column 'n': Encoding objects of type Number is unsupported: a number",
        ),
        (
            lambda it, context: context.upsert(totals, Total("k", Number())),  # type: ignore[arg-type]
            "RowError: row for table 'totals': column 'n': Encoding objects of type Number is unsupported: a number",
        ),
        (
            lambda it, context: context.delete(rows, {"k": Number()}),
            "RowError: key of a row of table 'rows': column 'k': Encoding objects of type Number is unsupported: a number",
        ),
        (
            lambda it, context: context.delete(rows, {1: "k", "n": 2}),
            r"the key of a row of table 'rows' is \[1, 'n'\], declared is \['k'\]",
        ),
        (
            lambda it, context: context.delete(rows, "k"),
            r"the key of a row of table 'rows' is 'k', declared is \['k'\]",
        ),
    ],
)
def test_it_says_what_is_expected(act: Act, words: str) -> None:
    computation: Any = type("Wrong", (Wrong,), {"act": staticmethod(act)})
    pipeline = Pipeline("p")
    pipeline.add(computation, [subscribe(texts, key=str)], [out, odd])
    pipeline.add(type("Odd", (Computation,), {"ProcessRecord": lambda *_: None}), [subscribe(odd, key=KEYS.get)])  # type: ignore[arg-type]
    pipeline.sink(rows)
    pipeline.sink(totals)
    pipeline.add(type("Sink", (Computation,), {"ProcessRecord": lambda *_: None}), [subscribe(out, key=str)])  # type: ignore[arg-type]
    with pytest.raises(HookFailed) as failed:
        Stepper(pipeline).send(texts, "k", 1)
    assert re.search(words, str(failed.value).splitlines()[-1])  # the lines above quote this file
