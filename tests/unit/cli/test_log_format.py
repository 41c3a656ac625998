"""Logs for programs: each line is one object, whatever is in it."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from millwheel.cli.lines import Lines
from millwheel.cli.log_format import HEAD, is_log_object, log_object
from millwheel.cli.main import main
from millwheel.cli.outcome import log_facts
from millwheel.cli.up import _print_object
from millwheel.host.progress import Progress
from millwheel.model import SECOND
from tests.unit.cli.test_lines import PROGRESS

FACTS = log_facts("json", "ledger", "worker", "worker-1")


def objects(text: str) -> list[dict[str, Any]]:
    assert text.endswith("\n") or not text
    return [json.loads(line) for line in text.splitlines()]


def test_a_record_of_the_log_keeps_its_facts_and_its_line_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(quiet=True, verbose=True, facts=FACTS):
        about = {"computation": "Count", "interval": 3, "sequencer": 17}
        logging.getLogger("millwheel.x").warning("two\nlines \x1b[31m %s", "\u202e", extra={"facts": about})
        logging.getLogger("millwheel").info("not for people")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "\x1b" not in captured.err
    assert "\u202e" not in captured.err
    first, second = objects(captured.err)
    assert first.pop("time").endswith("Z")
    assert first == {"level": "warning", "message": "two\nlines \x1b[31m \u202e", "pipeline": "ledger", "role": "worker",
                     "member": "worker-1", **about}  # fmt: skip
    assert second["level"] == "info"


def test_facts_of_a_message_cannot_say_that_another_process_spoke(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(quiet=True, verbose=False, facts=FACTS) as lines:
        lines.say(logging.ERROR, "x", facts={"pipeline": "another", "key": "k"})
    (said,) = objects(capsys.readouterr().err)
    assert (said["pipeline"], said["key"], said["level"]) == ("ledger", "k", "error")


def test_an_error_of_our_own_has_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(quiet=True, verbose=False, facts=FACTS):
        try:
            raise ZeroDivisionError("none")
        except ZeroDivisionError:
            logging.getLogger("millwheel").exception("it broke")
    (said,) = objects(capsys.readouterr().err)
    assert said["message"] == "it broke"
    assert said["trace"].splitlines()[-1] == "ZeroDivisionError: none"


def test_progress_is_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(quiet=False, verbose=False, facts=FACTS) as lines:
        lines.progress(PROGRESS, 2.0)
        lines.end(PROGRESS)
    report, end = objects(capsys.readouterr().out)
    assert (report["rows"], report["records"], report["rows_a_second"]) == (1_000, 2_000, 500.0)
    assert report["watermarks_us"] == {"Count": 10 * SECOND, "source:text": 12 * SECOND}
    assert end["rows_a_second"] is None


def test_every_count_that_lines_for_people_note_is_a_field() -> None:
    from millwheel.cli.shown_progress import figures, noted

    fields = figures(PROGRESS)
    assert {name.replace(" ", "_") for name in noted(PROGRESS)} <= fields.keys()
    assert {"rows", "records"} <= fields.keys()
    assert isinstance(PROGRESS, Progress)


def test_plain_lines_stay_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert log_facts("plain", "ledger", "run") is None
    with Lines(quiet=False, verbose=False, facts=None) as lines:
        lines.end(PROGRESS)
    assert capsys.readouterr().out.startswith("millwheel: 1,000 rows in")


def test_up_passes_objects_on_and_makes_objects_of_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    whole = log_object(1.0, logging.INFO, "hello", {"pipeline": "p", "role": "worker", "member": "worker-2"})
    assert is_log_object(whole)
    for no in ("", "{", "{}", '{"time": 1}', "[1]", "Traceback"):
        assert not is_log_object(no)
    _print_object("p", "worker-2", False, whole)
    _print_object("p", "worker-1 ", True, "Fatal Python error: \x07")
    captured = capsys.readouterr()
    assert captured.out == whole + "\n"
    (made,) = objects(captured.err)
    assert made.keys() == {*HEAD, "member"}
    assert (made["role"], made["member"], made["message"]) == ("worker", "worker-1", "Fatal Python error: \x07")


def test_a_format_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "x:y", "--log-format", "xml"]) == 2
    assert "'xml' is not one of" in capsys.readouterr().err


def test_a_run_says_all_as_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """The error of a store that is none comes in the form that was asked for."""
    name = "log_format_words"
    (tmp_path / f"{name}.py").write_text(
        "from millwheel import Pipeline\npipeline = Pipeline('words')\n"
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert main(["run", f"{name}:pipeline", "--store", "nonsense", "--log-format", "json"]) == 1
    (said,) = objects(capsys.readouterr().err)
    assert (said["level"], said["pipeline"], said["role"]) == ("error", "words", "run")
