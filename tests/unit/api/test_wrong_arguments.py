"""A wrong argument in a hook is answered with what is expected, not with an attribute that is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel import Computation, JsonCoder, MapCell, Pipeline, Stream, TextCoder, subscribe
from millwheel.testing import HookFailed, Stepper

texts = Stream("texts", TextCoder())
out = Stream("out", TextCoder())

Act = Callable[[Any, Any], None]


class Wrong(Computation[str]):
    act: Act
    entries = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Any, record: Any) -> None:
        type(self).act(self, context)

    def ProcessTimer(self, context: Any, timer: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("act", "words"),
    [
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
    ],
)
def test_it_says_what_is_expected(act: Act, words: str) -> None:
    computation: Any = type("Wrong", (Wrong,), {"act": staticmethod(act)})
    pipeline = Pipeline("p")
    pipeline.add(computation, [subscribe(texts, key=str)], [out])
    pipeline.add(type("Sink", (Computation,), {"ProcessRecord": lambda *_: None}), [subscribe(out, key=str)])  # type: ignore[arg-type]
    with pytest.raises(HookFailed, match=words):
        Stepper(pipeline).send(texts, "k", 1)
