"""`run` as a call in a program of the user's."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, launch, savepoints, subscribe
from millwheel.committed import Committed, check, reset
from millwheel.errors import StoreError, WiringError
from millwheel.host.progress import Progress
from millwheel.launch import arun, open_store, report, run, unhurried_collector
from millwheel.overview import ClusterOffice
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


def passing(name: str) -> Pipeline:
    words = Stream("words", TextCoder())
    made = Pipeline(name)
    made.inject(IterableSource("text", [("a", 1)]), into=words)
    made.add(Pass, [subscribe(words, str)])
    return made


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pipeline": 5}, "run needs a Pipeline, got 5"),
        ({"pipeline": passing}, "run needs a Pipeline, got <function passing .*: call it, with brackets"),
        ({"on_progress": 5}, "on_progress=5: give a function"),
        ({"on_failure": 5}, "on_failure=5: give a function"),
        ({"allow_quarantine": "x"}, "allow_quarantine='x': give a number, at least 0, or None"),
        ({"allow_rejected": -1}, "allow_rejected=-1: give a number, at least 0, or None"),
        ({"cache_bytes": 0}, "cache_bytes=0: give a number, at least 1, or None"),
        ({"cache_bytes": "1GiB"}, "cache_bytes='1GiB': give a number, at least 1, or None"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_started(given: dict[str, Any], says: str) -> None:
    asked: dict[str, Any] = {"pipeline": passing("p"), "store": "postgresql://nobody@127.0.0.1:1/none", **given}
    with pytest.raises(WiringError, match=says):
        run(**asked)
    with pytest.raises(WiringError, match=says):
        asyncio.run(arun(**asked))


@pytest.mark.postgres
def test_a_callback_that_raises_is_named_and_the_run_goes_on(
    postgres: EmbeddedPostgres, pipeline: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millwheel.launch.PROGRESS_DELAY_S", 0.0)

    def broken(*_: Any) -> None:
        raise ValueError("no such display")

    assert run(passing(pipeline), postgres.url, on_progress=broken).records == 1
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "on_progress has failed and is not called any more: ValueError: no such display"
    )


@pytest.mark.parametrize(
    "call", [Committed, check, reset, ClusterOffice, savepoints.found, lambda given: savepoints.create(given, "a")]
)
@pytest.mark.parametrize(
    ("given", "said"), [("words:pipeline", "needs a Pipeline, got 'words:"), (passing, "call it, with")]
)
def test_who_asks_about_what_is_no_pipeline_is_told(call: Callable[[Any], Any], given: Any, said: str) -> None:
    # It was an AttributeError: 'str' object has no attribute 'graph'.
    with pytest.raises(WiringError, match=said):
        call(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((" ", "data"), "the store's URL or directory is empty"),
        ((None, " "), "the store's URL or directory is empty"),
        (("no url", "data"), "the store is not a Postgres URL"),
        ((None, "data"), "there is no store in data: run the pipeline first"),
    ],
)
def test_a_store_that_is_only_asked_is_not_made(
    given: tuple[str | None, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=said), open_store(*given, create=False):
        pass
    assert [*tmp_path.iterdir()] == []


def test_the_collector_is_as_it_was_after_a_run() -> None:
    before = gc.get_threshold()
    with unhurried_collector():
        assert gc.get_threshold() != before
    assert gc.get_threshold() == before


def test_whoever_has_read_enough_of_the_progress_is_told_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launch, "PROGRESS_DELAY_S", 0.001)
    told: list[object] = []

    def on_progress(progress: Progress, seconds: float) -> None:
        told.append(progress)
        if len(told) == 2:
            raise BrokenPipeError

    shell: Any = SimpleNamespace(progress=lambda: "progress")
    asyncio.run(asyncio.wait_for(report(shell, on_progress), 30))
    assert told == ["progress", "progress"]
    assert caplog.messages == [], "that is no failure"
