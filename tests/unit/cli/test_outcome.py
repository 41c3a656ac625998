"""What is said at the end of a run, and the status that goes with it."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.cli.lines import Lines
from millwheel.cli.options import DEFAULT_DATA, Place
from millwheel.cli.outcome import outcome, outcome_of_all
from millwheel.cli.status import Status
from millwheel.cli.up import child_environment
from millwheel.cluster import RunEnding
from millwheel.host.progress import Progress

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
    for name, value in child_environment(Place("a:b", store, data), "postgresql://of-up").items():
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
