"""A source whose watermark stands still says why, once: what it waits for, and what would let it go on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, limits, subscribe
from millwheel.host.stalls import why_it_waits
from millwheel.model import MAX_TIME
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import BoundedDisorder, FileSource, IterableSource, SparkOutputSource
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import run_until

lines = Stream("lines", TextCoder())


class Pass(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISCOVER_DELAY_US", 20_000)
    monkeypatch.setattr("millwheel.host.stalls.STALL_DELAY_US", 300_000)


def said(tmp_path: Path, caplog: pytest.LogCaptureFixture, looks: int, **settings: Any) -> list[str]:
    source = FileSource("logs", tmp_path / "*.log", event_time=int, tail=True, watermark=BoundedDisorder(0), **settings)
    pipeline = Pipeline("p")
    pipeline.inject(source, into=lines)
    pipeline.add(Pass, [subscribe(lines, str)])
    seen = 0

    def often_enough(run: EmbeddedRun) -> bool:
        nonlocal seen
        seen += 1
        return seen > looks

    with caplog.at_level(logging.WARNING, "millwheel"):
        run_until(pipeline, MemoryStore(), often_enough)
    return [record.getMessage() for record in caplog.records if "has stood" in record.getMessage()]


def test_a_tailed_file_that_gives_nothing_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.log").write_text("1000000\n")
    found = said(tmp_path, caplog, 400, later_files_not_before=10**15)
    assert len(found) == 1
    assert found[0].startswith("source logs: its watermark has stood at 1970-01-01T00:00:01")
    assert found[0].endswith(
        "a.log may still give a row as old as that; set idle_after_us, to say how long silence may last"
    )


def test_later_files_are_named_when_it_is_they_that_hold_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.log").write_text("1000000\n")
    (message,) = said(tmp_path, caplog, 400)
    assert "the beginning of time" in message
    assert "a partition that is not there yet may still give a row as old as that; set idle_after_us" in message
    assert message.endswith("or how old the rows of later ones are (later_files_not_before of a FileSource)")


def test_without_a_file_it_waits_for_the_first_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (message,) = said(tmp_path, caplog, 400)
    assert message.endswith("there has been no partition yet, for example no file; it goes on when there is one")


def test_a_source_that_may_be_silent_goes_on_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.log").write_text("1000000\n")
    assert said(tmp_path, caplog, 400, idle_after_us=50_000) == []


def test_a_source_whose_rows_are_all_there_is_not_told_of_a_setting_that_it_refuses(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("1000000\n")
    for source in (IterableSource("s", []), FileSource("s", tmp_path), SparkOutputSource("s", tmp_path, "at")):
        assert why_it_waits(source, "a.log") == "a.log may still give a row as old as that"
    tailed = FileSource("s", tmp_path, tail=True)
    assert why_it_waits(tailed, "a.log").endswith("; set idle_after_us, to say how long silence may last")


def test_a_source_at_its_end_has_nothing_to_say() -> None:
    from millwheel.host.stalls import Stalls

    stalls = Stalls()
    assert not any(stalls.stands("s", MAX_TIME, now) for now in range(0, 10**9, 10**8))
    assert [stalls.stands("s", 7, now) for now in (0, 299_999, 300_000)] == [False, False, True]
