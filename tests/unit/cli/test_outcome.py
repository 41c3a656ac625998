"""What is said at the end of a run, and the status that goes with it."""

from __future__ import annotations

import pytest

from millwheel.cli.lines import Lines
from millwheel.cli.options import Place
from millwheel.cli.outcome import outcome_of_all
from millwheel.cli.status import Status
from millwheel.cluster import RunEnding

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
