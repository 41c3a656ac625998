"""What a run prints: plain lines that can be searched, and the display on a terminal."""

from __future__ import annotations

import io
import logging
import re
from typing import Any

import msgspec
import pytest
from rich.console import Console

from millwheel.cli.display import Display, drawn
from millwheel.cli.lines import Lines
from millwheel.cli.shown_progress import figures, summary
from millwheel.host.progress import Progress
from millwheel.model import MAX_TIME, SECOND

PROGRESS = Progress(
    records=2_000, injected=1_000, rejected=3, late=0, duplicates=0, repeated=0, quarantined=0, backdated=0, checkpoints=9,
    watermarks={"Count": 10 * SECOND, "source:text": 12 * SECOND}, finished=False, in_quarantine=2,
)  # fmt: skip


def after(rows: int) -> Progress:
    return msgspec.structs.replace(PROGRESS, injected=rows)


def test_the_rate_is_that_of_the_last_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(quiet=False, verbose=False) as lines:
        for second in range(1, 11):
            lines.progress(after(1_000 * second if second <= 5 else 5_000), float(second))
    rates = re.findall(r"([\d,]+)/s", capsys.readouterr().out)
    assert rates[:5] == ["1,000"] * 5
    assert rates[5:9] == ["800", "600", "400", "200"], "of five seconds, of which the last have had nothing"
    assert rates[-1] == "0"


def test_a_summary_says_what_is_wrong_only_when_there_is_some() -> None:
    assert summary(PROGRESS, 70.4) == (
        "1,000 rows in 70/s, 2,000 records, watermark 1970-01-01T00:00:10+00:00, lag 2.0 s, rejected 3, quarantined keys 2"
    )
    ahead = msgspec.structs.replace(PROGRESS, watermarks={"Count": 10 * SECOND, "source:text": 9 * SECOND})
    assert ", lag 0.0 s, " in summary(ahead)
    clean = msgspec.structs.replace(PROGRESS, rejected=0, in_quarantine=0, watermarks={"Count": MAX_TIME})
    assert summary(clean) == "1,000 rows in, 2,000 records, watermark the end of time"
    assert summary(msgspec.structs.replace(clean, injected=1, records=1)).startswith("1 row in, 1 record, ")


@pytest.mark.parametrize(("waited_s", "said"), [(0.0, ""), (2.0, ""), (3.4, ", waiting for Postgres for 3 s")])
def test_a_summary_says_for_how_long_the_store_has_not_answered(waited_s: float, said: str) -> None:
    waits = msgspec.structs.replace(PROGRESS, rejected=0, in_quarantine=0, store_wait_s=waited_s)
    assert summary(waits, 0.0).partition("lag 2.0 s")[2] == said
    assert figures(waits)["store_wait_s"] == waited_s
    text = shown(lambda console: console.print(drawn(waits, 0.0)))
    assert ("waiting for Postgres for 3 s" in text) == bool(said)


def test_every_line_of_a_message_begins_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(quiet=True, verbose=False) as lines:
        lines.say(logging.ERROR, "first\nsecond \x1b[31m")
        logging.getLogger("millwheel.anything").warning("a %s", "warning")
        logging.getLogger("millwheel").info("not said")
        lines.progress(PROGRESS, 1.0)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "millwheel: error: first\nmillwheel: error: second \\x1b[31m\nmillwheel: warning: a warning\n"
    )
    assert lines not in logging.getLogger("millwheel").handlers


def test_what_a_run_waits_for_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = msgspec.structs.replace(PROGRESS, waits_for="the hold of key 'k' in Count at x")
    with Lines(quiet=False, verbose=False) as lines:
        for second in range(1, 4):
            lines.progress(waiting, float(second))
    assert capsys.readouterr().err.count("waiting for the hold") == 1


def shown(console_of: Any) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    console_of(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_display_has_rate_lag_watermarks_and_what_is_wrong() -> None:
    text = shown(lambda console: console.print(drawn(PROGRESS, 70.4)))
    for part in ("1,000 rows in", "70/s", "lag 2.0 s", "rejected 3", "quarantined keys 2"):
        assert part in text
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["source:text", "Count"]
    assert "1970-01-01T00:00:12" in lines[-2]


def test_a_name_is_no_markup() -> None:
    odd = msgspec.structs.replace(PROGRESS, watermarks={"[red]x[/red]": 0})
    assert "[red]x[/red]" in shown(lambda console: console.print(drawn(odd, 0.0)))


def test_the_display_is_drawn_in_place_and_leaves_nothing() -> None:
    def show(console: Console) -> None:
        display = Display(console=console)
        display.show(PROGRESS, 1.0)
        display.show(PROGRESS, 2.0)
        display.close()

    text = shown(show)
    assert "\x1b[1A" in text  # the cursor goes up, to draw over what is there
    assert text.count("1,000 rows in") >= 2
