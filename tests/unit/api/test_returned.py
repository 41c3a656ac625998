"""A hook that returns work which nobody runs is an error: its record would be lost in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel import Computation, Pipeline, Stream, TextCoder, subscribe
from millwheel.api.returned import check_returned
from millwheel.testing import HookFailed, Stepper

texts = Stream("texts", TextCoder())


def yields(context: Any, given: Any) -> Any:
    yield given


async def waits(context: Any, given: Any) -> None:
    raise AssertionError("nobody awaits it")


async def both(context: Any, given: Any) -> Any:
    yield given


class Wrapped(Computation[str]):
    """Its hooks are plain to look at, and call `work`."""

    work: Callable[[Any, Any], Any]

    def ProcessRecord(self, context: Any, record: Any) -> Any:
        if record.value == "timer":
            context.set_timer("due", 5)
            return None
        return type(self).work(context, record)

    def ProcessTimer(self, context: Any, timer: Any) -> Any:
        return type(self).work(context, timer)


def wrapping(work: Callable[[Any, Any], Any]) -> Pipeline:
    computation: Any = type("Wrapped", (Wrapped,), {"work": staticmethod(work)})
    pipeline = Pipeline("p")
    pipeline.add(computation, [subscribe(texts, key=str)])
    return pipeline


@pytest.mark.parametrize(("work", "kind"), [(yields, "generator"), (waits, "coroutine"), (both, "async_generator")])
def test_a_record_is_not_lost_in_what_its_hook_returns(work: Callable[[Any, Any], Any], kind: str) -> None:
    with pytest.raises(HookFailed, match=f"the hook returned a {kind}, whose code has not run"):
        Stepper(wrapping(work)).send(texts, "k", 1)


def test_nor_is_a_timer() -> None:
    stepper = Stepper(wrapping(yields))
    stepper.send(texts, "timer", 1)
    with pytest.raises(HookFailed, match="the hook returned a generator"):
        stepper.finish()


@pytest.mark.parametrize("made", [None, 5, "text", [1], (), {"a": 1}])
def test_what_is_there_already_may_be_returned(made: object) -> None:
    check_returned(made)
    stepper = Stepper(wrapping(lambda context, given: made))
    stepper.send(texts, "k", 1)
    stepper.finish()
