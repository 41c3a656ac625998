"""`run` as a call in a program of the user's."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.launch import run
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Pass(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.postgres
@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("own", [False, True])
def test_after_a_run_signals_are_handled_as_before(postgres: EmbeddedPostgres, pipeline: str, own: bool) -> None:
    def handler(*_: Any) -> None:
        pass

    before: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if own:
        before = dict.fromkeys(SIGNALS, handler)
    for number in SIGNALS:
        signal.signal(number, before[number])
    texts = Stream("texts", TextCoder())
    passing = Pipeline(pipeline)
    passing.inject(IterableSource("given", [("a", 1)]), into=texts)
    passing.add(Pass, [subscribe(texts, key=str)])
    assert run(passing, postgres.url).records == 1
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
