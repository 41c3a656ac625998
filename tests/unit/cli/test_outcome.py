"""What is said at the end of a run, and the status that goes with it."""

from __future__ import annotations

import msgspec
import pytest

from millwheel import Pipeline, committed, savepoints
from millwheel.cli.lines import Lines
from millwheel.cli.main import main
from millwheel.cli.options import DEFAULT_DATA, Place
from millwheel.cli.outcome import failed, outcome, outcome_of_all, tell
from millwheel.cli.status import Status
from millwheel.cli.up import child_environment
from millwheel.cluster import RunEnding
from millwheel.errors import Fenced, HookExited, HooksFail, MillwheelError, PipelineFailed, StoreError, StoreUnavailable
from millwheel.host.progress import Progress
from millwheel.runtime.failures import Failure
from millwheel.savepoints import Savepoint
from millwheel_storage.postgres.planned import Report

LEFT = [
    "warning: 1 key is in quarantine: see millwheel quarantine list a:b --store URL",
    "warning: 2 rows were rejected in all",
]


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        (RunEnding(), Status.DONE, []),
        (RunEnding(1, 2), Status.DONE, LEFT),
        (RunEnding(1, 2, True), Status.LEFT_OVER, LEFT),
        (RunEnding(1, 2, True, "too much"), Status.LEFT_OVER, [*LEFT, "error: the run is stopped: too much"]),
    ],
)
def test_a_controller_says_why_it_ends_with_its_status(
    ending: RunEnding, status: Status, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    # On Spark what workers say is in the logs of executors: a cluster ended with status 3 and not a word.
    with Lines(quiet=True, verbose=False) as lines:
        assert outcome_of_all(lines, Place("a:b", "postgresql://x", "here"), ending) == status
    assert capsys.readouterr().err.splitlines() == [f"millwheel: {line}" for line in said]


@pytest.mark.parametrize(
    ("store", "data", "asked"),
    [
        (None, DEFAULT_DATA, ""),
        (None, "other place", " --data 'other place'"),
        ("postgresql://x", DEFAULT_DATA, " --store URL"),
    ],
)
def test_a_command_is_named_as_the_user_of_up_has_to_type_it(
    store: str | None, data: str, asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` gives its processes a URL, also when the user gave none."""
    usual = data == DEFAULT_DATA
    for name, value in child_environment(Place("a:b", store, data, not usual), "postgresql://of-up").items():
        monkeypatch.setenv(name, value)
    with Lines(quiet=True, verbose=False) as lines:
        outcome_of_all(lines, Place("a:b", "postgresql://of-up", DEFAULT_DATA), RunEnding(1))
    assert capsys.readouterr().err == (
        f"millwheel: warning: 1 key is in quarantine: see millwheel quarantine list a:b{asked}\n"
    )


@pytest.mark.parametrize(
    ("in_quarantine", "rejected", "allow_quarantine", "allow_rejected", "status"),
    [
        (0, 0, 0, 0, Status.DONE),
        (1, 0, 0, 0, Status.LEFT_OVER),
        (0, 1, 0, 0, Status.LEFT_OVER),
        (2, 3, 2, 3, Status.DONE),
        (3, 3, 2, 3, Status.LEFT_OVER),
        (2, 4, 2, 3, Status.LEFT_OVER),
    ],
)
def test_a_run_that_leaves_more_over_than_is_allowed_says_so_by_its_status(
    in_quarantine: int, rejected: int, allow_quarantine: int, allow_rejected: int, status: Status
) -> None:
    progress = Progress(0, 0, rejected, 0, 0, 0, 0, 0, 0, {}, True, in_quarantine)
    with Lines(quiet=True, verbose=False) as lines:
        said = outcome(lines, Place("a:b", None, "here"), progress, "", allow_quarantine, allow_rejected)
    assert said == status


@pytest.mark.parametrize(
    ("stopped", "told", "status"),
    [
        ("", "stopped by SIGTERM", Status.STOPPED),
        ("too much", "", Status.LEFT_OVER),
        ("too much", "stopped by SIGTERM", Status.LEFT_OVER),
    ],
)
def test_a_run_that_stopped_by_itself_says_why_also_when_it_was_told_to(
    stopped: str, told: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever starts it again must know."""
    progress = msgspec.structs.replace(Progress(0, 0, 0, 0, 0, 0, 0, 0, 0, {}, False, 0), stopped=stopped)
    with Lines(quiet=True, verbose=False) as lines:
        assert outcome(lines, Place("a:b", None, "here"), progress, told) == status
    said = f"error: the run is stopped: {stopped}" if stopped else told
    assert capsys.readouterr().err == f"millwheel: {said}\n"


@pytest.mark.parametrize("too_much", [False, True])
def test_a_worker_ends_as_its_controller_has_judged(too_much: bool) -> None:
    """Whatever it has itself: what is allowed is allowed to all together."""
    ending = RunEnding(1, 2, too_much)
    progress = msgspec.structs.replace(Progress(0, 0, 9, 0, 0, 0, 0, 0, 0, {}, True, 9), ending=ending)
    with Lines(quiet=True, verbose=False) as lines:
        status = outcome(lines, Place("a:b", None, "here"), progress, "")
    assert status == (Status.LEFT_OVER if too_much else Status.DONE)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Fenced("x"), Status.TAKEN_OVER),
        (HooksFail("x"), Status.BROKEN_HOOKS),
        (HookExited("x"), Status.HOOK_EXITED),
        (StoreUnavailable("x"), Status.NO_STORE),
        (StoreError("x"), Status.FAILED),
        (PipelineFailed("x", "Traceback"), Status.FAILED),
    ],
)
def test_a_run_that_an_error_ends_has_the_status_of_the_error(error: MillwheelError, status: Status) -> None:
    with Lines(quiet=True, verbose=False) as lines:
        assert failed(lines, error) == status


@pytest.mark.parametrize(
    ("report", "status", "said"),
    [
        (Report(False), Status.DONE, ["new"]),
        (Report(True), Status.DONE, ["same"]),
        (Report(True, changes=["one"]), Status.DONE, ["change"]),
        (Report(True, warnings=["one"]), Status.DONE, ["warning"]),
        (Report(False, warnings=["one"]), Status.DONE, ["new", "warning"]),
        (Report(True, refusals=["one"]), Status.FAILED, ["refused"]),
        (Report(True, unreadable=["one"]), Status.FAILED, ["unreadable"]),
    ],
)
def test_a_check_fails_for_what_a_start_is_refused_for_and_for_what_it_could_not_read(
    report: Report, status: Status, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Place, "pipeline", lambda place: Pipeline("p"))
    monkeypatch.setattr(committed, "check", lambda *_: report)
    assert main(["check", "a:b"]) == status
    assert [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()] == said


def test_a_savepoint_is_put_back_only_by_who_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    back: list[str] = []

    def restore(_: Pipeline, name: str, *__: object) -> Savepoint:
        back.append(name)
        return Savepoint(name, 0, 0, 0)

    monkeypatch.setattr(Place, "pipeline", lambda place: Pipeline("p"))
    monkeypatch.setattr(savepoints, "restore", restore)
    assert main(["savepoint", "restore", "a:b", "monday"]) == Status.USAGE
    assert "restore drops all that 'p' has stored since savepoint 'monday': add --yes" in capsys.readouterr().err
    assert back == []
    assert main(["savepoint", "restore", "a:b", "monday", "--yes"]) == Status.DONE
    assert back == ["monday"]


def test_kinds_of_rejected_rows_are_told_by_source_and_the_most_frequent_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinds = {"text": {"rare": 1, "often": 5_000}, "logs": {"none": 2}}
    progress = msgspec.structs.replace(Progress(0, 0, 5_003, 0, 0, 0, 0, 0, 0, {}, True, 0), rejections=kinds)
    with Lines(quiet=True, verbose=False) as lines:
        outcome(lines, Place("a:b", None, "here"), progress, "")
    assert capsys.readouterr().err.splitlines() == [
        "millwheel: warning: source logs: 2 rejected: none",
        "millwheel: warning: source text: 5,000 rejected: often",
        "millwheel: warning: source text: 1 rejected: rare",
    ]


def test_the_key_of_a_failure_is_named_as_it_has_to_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    failure = Failure(computation="Count", hook="ProcessRecord", key="C:\\t b", error="ValueError: no", trace="trace")
    with Lines(quiet=True, verbose=False) as lines:
        tell(lines, Place("a:b", None, DEFAULT_DATA), failure)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("see millwheel quarantine show a:b Count 'C:\\\\t b'"), "a backslash is written twice"
