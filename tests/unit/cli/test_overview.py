"""What `millwheel status` prints of a cluster."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from millwheel.cli.main import main
from millwheel.cli.options import Place
from millwheel.cli.overview import drawn, json_line, lines
from millwheel.model import MAX_TIME, MIN_TIME, SECOND
from millwheel.overview import ClusterPicture, SeenHotKey, SeenInterval, SeenMember, SeenSource

FOUND = ClusterPicture(
    version=7,
    members=(
        SeenMember("controller-1", "c1", "controller", "here:1", True, True),
        SeenMember("worker\x1b-1", "w2", "worker", "here:2", False, False),
    ),
    intervals=(
        SeenInterval(1, "Count", "", "m\t", "worker-1", 1_200),
        SeenInterval(2, "Count", "m\t", None, None, 0),
    ),
    sources=(SeenSource("text", "worker-1", 2_000, 3),),
    watermarks={"source:text": 25 * SECOND, "Count": 10 * SECOND},
    seen_at=4.0,
)
EARLIER = msgspec.structs.replace(FOUND, sources=(SeenSource("text", "worker-1", 1_000, 3),), seen_at=2.0)


def test_each_thing_is_a_line() -> None:
    assert lines(FOUND, EARLIER) == [
        "member\tcontroller-1\tc1\tcontroller (leads)\there:1\talive",
        "member\tworker\\x1b-1\tw2\tworker\there:2\tdead",
        "interval\t1\tCount\tthe first key to before m\\t\tworker-1\tbacklog 1,200",
        "interval\t2\tCount\tm\\t to the last key\tnobody\tbacklog 0",
        "source\ttext\tworker-1\t3 open, 2,000 rows, 500 rows/s",
        "watermark\tCount\t1970-01-01T00:00:10+00:00",
        "watermark\tsource:text\t1970-01-01T00:00:25+00:00",
        "lag\t15.0 s",
    ]
    assert "rows/s" not in "".join(lines(FOUND))
    one = msgspec.structs.replace(FOUND, sources=(SeenSource("text", "worker-1", 1, 3),))
    assert "source\ttext\tworker-1\t3 open, 1 row" in lines(one)


def test_a_source_that_is_too_far_ahead_is_shown_as_paused() -> None:
    (source,) = FOUND.sources
    found = msgspec.structs.replace(FOUND, sources=(msgspec.structs.replace(source, paused="it is ahead"),))
    assert "paused\ttext\tit is ahead" in lines(found)
    assert json.loads(json_line(found))["sources"][0]["paused"] == "it is ahead"
    console = Console(width=160, record=True, force_terminal=False)
    console.print(drawn(found, None))
    assert "3, paused" in console.export_text()


def test_json_has_the_same() -> None:
    found = json.loads(json_line(FOUND, EARLIER))
    assert found["rows_a_second"] == {"text": 500.0}
    assert found["lag_us"] == 15 * SECOND
    assert {*found} == {
        "version", "members", "intervals", "sources", "watermarks", "embedded", "lag_us", "rows_a_second",
    }, "what only this process knows has no meaning elsewhere"  # fmt: skip
    assert found["intervals"][1] == {
        "id": 2, "computation": "Count", "low": "m\t", "high": None, "owner": None, "backlog": 0,
        "hot": [],
    }  # fmt: skip


def test_what_nobody_owns_belongs_to_an_embedded_run_while_one_runs() -> None:
    found = msgspec.structs.replace(FOUND, embedded=True)
    assert "interval\t2\tCount\tm\\t to the last key\tan embedded run\tbacklog 0" in lines(found)
    assert json.loads(json_line(found))["embedded"] is True
    console = Console(width=160, record=True, force_terminal=False)
    console.print(drawn(found, None))
    assert "an embedded run" in console.export_text()
    for embedded, alarms in ((False, True), (True, False)):
        console = Console(width=160, record=True, force_terminal=True)
        console.print(drawn(msgspec.structs.replace(FOUND, members=(), embedded=embedded), None))
        assert ("\x1b[1;31m" in console.export_text(styles=True)) == alarms, "it is nobody's fault"


@pytest.mark.parametrize("watermarks", [
    {}, {"Count": MIN_TIME, "source:text": SECOND}, {"Count": SECOND, "source:text": MAX_TIME},
])  # fmt: skip
def test_there_is_no_lag_at_the_ends_of_time(watermarks: dict[str, int]) -> None:
    found = msgspec.structs.replace(FOUND, watermarks=watermarks)
    assert found.lag_us is None
    assert lines(found)[-1] == "lag\t-"


def test_a_computation_that_is_ahead_of_what_is_stored_of_its_source_has_no_negative_lag() -> None:
    found = msgspec.structs.replace(FOUND, watermarks={"Count": 10 * SECOND, "source:text": 9 * SECOND})
    assert lines(found)[-1] == "lag\t0.0 s"


def test_hot_keys_are_shown_with_their_share() -> None:
    first, second = FOUND.intervals
    hot = (SeenHotKey("a\x1b", 0.42), SeenHotKey("b", 0.056))
    found = msgspec.structs.replace(FOUND, intervals=(msgspec.structs.replace(first, hot=hot), second))
    assert [line for line in lines(found) if line.startswith("hot key")] == [
        "hot key\t1\tCount\ta\\x1b\t42%", "hot key\t1\tCount\tb\t6%",
    ]  # fmt: skip
    assert json.loads(json_line(found))["intervals"][0]["hot"][0] == {"key": "a\x1b", "share": 0.42}
    console = Console(width=160, record=True, force_terminal=False)
    console.print(drawn(found, None))
    assert "42%" in console.export_text()


def test_a_source_that_is_read_to_its_end_has_no_negative_rate() -> None:
    assert EARLIER.rows_a_second(msgspec.structs.replace(FOUND, seen_at=1.0)) == {"text": 0.0}


def test_the_display_has_every_process_interval_and_source() -> None:
    console = Console(width=160, record=True, force_terminal=False)
    console.print(drawn(FOUND, EARLIER))
    shown = console.export_text()
    for text in ("map 7, lag 15.0 s", "controller (leads)", "dead", "nobody", "1,200", "500", "m\\t to the last key"):
        assert text in shown
    assert "share of its records" not in shown, "no key is hot"


@pytest.mark.parametrize("as_json", [False, True])
def test_whoever_follows_sees_the_rate_since_the_last_look_until_ctrl_c(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [1_000, 3_000, 3_500]
    looks = [
        msgspec.structs.replace(FOUND, sources=(SeenSource("text", "worker-1", count, 3),), seen_at=float(second))
        for second, count in enumerate(rows)
    ]

    def sleep(seconds: float) -> None:
        if not looks:
            raise KeyboardInterrupt

    monkeypatch.setattr(Place, "office", lambda place: nullcontext(SimpleNamespace(look=lambda: looks.pop(0))))
    monkeypatch.setattr(time, "sleep", sleep)
    # On a terminal JSON is for programs, too.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: as_json, raising=False)
    assert main(["status", "a:b", "--follow", *(["--json"] if as_json else [])]) == 130
    out = capsys.readouterr().out
    if as_json:
        found = [json.loads(line)["rows_a_second"] for line in out.splitlines()]
        assert found == [{}, {"text": 2000.0}, {"text": 500.0}]
    else:
        said = [line.partition(" rows")[2] for line in out.splitlines() if line.startswith("source")]
        assert said == ["", ", 2,000 rows/s", ", 500 rows/s"]
