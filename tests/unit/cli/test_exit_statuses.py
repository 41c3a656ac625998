"""Each command that runs something ends with the status of how that has ended, whatever ends it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel import launch, processes
from millwheel.cli import up
from millwheel.cli.main import main
from millwheel.cli.status import Status
from millwheel.cluster import RunEnding
from millwheel.errors import Fenced, HookExited, HooksFail, PipelineFailed, StoreError, StoreUnavailable
from millwheel.host.progress import Progress

PIPELINE = """
from millwheel import Computation, JsonCoder, Pipeline, Stream, subscribe
from millwheel_injectors import IterableSource

rows = Stream("rows", JsonCoder(int))


class Pass(Computation[int]):
    def ProcessRecord(self, context, record):
        pass


pipeline = Pipeline("exits")
pipeline.inject(IterableSource("numbers", [(1, 1)]), into=rows)
pipeline.add(Pass, [subscribe(rows, str)])
"""
DONE = Progress(1, 1, 0, 1, 0, 0, 0, 0, 0, {}, True, 0)
STOPPED = msgspec.structs.replace(DONE, finished=False)
REJECTED = msgspec.structs.replace(DONE, rejected=2)


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        raise error

    return call


def gives(answer: Any) -> Callable[..., Any]:
    return lambda *given, **named: answer


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """The status of a command when what it runs ends in this way."""
    (tmp_path / "exits_pipeline.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)

    def status(command: str, runs: Callable[..., Any], *options: str) -> int:
        where: dict[str, tuple[Any, str]] = {
            "run": (launch, "run"), "worker": (processes, "run_worker"), "controller": (processes, "run_controller"),
            "up": (up, "_run"),
        }  # fmt: skip
        monkeypatch.setattr(*where[command], runs)
        return main([command, "exits_pipeline:pipeline", "--store", "postgresql://nowhere", *options])

    return status


@pytest.mark.parametrize(
    ("command", "answer", "status"),
    [
        ("run", DONE, Status.DONE),
        ("run", STOPPED, Status.STOPPED),
        ("run", REJECTED, Status.LEFT_OVER),
        ("worker", (msgspec.structs.replace(DONE, ending=RunEnding()), True), Status.DONE),
        ("worker", (msgspec.structs.replace(DONE, ending=RunEnding(1, 0, True)), True), Status.LEFT_OVER),
        ("worker", (STOPPED, False), Status.STOPPED),
        ("controller", RunEnding(), Status.DONE),
        ("controller", RunEnding(0, 1, True), Status.LEFT_OVER),
        ("controller", None, Status.STOPPED),
    ],
)
def test_how_a_run_has_ended_is_the_status_of_its_command(
    ends: Callable[..., int], command: str, answer: Any, status: Status
) -> None:
    assert ends(command, gives(answer)) == status


@pytest.mark.parametrize(
    ("found", "status"),
    [(0, 0), (3, 3), (2, 2), (None, Status.STOPPED), (-9, Status.FAILED), (-15, Status.FAILED)],
)
def test_a_cluster_ends_with_the_status_of_its_processes_and_a_killed_one_is_a_failure(
    ends: Callable[..., int], found: int | None, status: int
) -> None:
    async def runs(*given: Any) -> int | None:
        return found

    assert ends("up", runs, "-q") == status


@pytest.mark.parametrize("command", ["run", "worker", "controller", "up"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreError("no such schema"), Status.FAILED),
        (PipelineFailed("source 'a' has failed", "a traceback"), Status.FAILED),
        (Fenced("taken over"), Status.TAKEN_OVER),
        (HooksFail("all have failed"), Status.BROKEN_HOOKS),
        (HookExited("sys.exit"), Status.HOOK_EXITED),
        (StoreUnavailable("away"), Status.NO_STORE),
        (KeyboardInterrupt(), Status.STOPPED),
    ],
)
def test_what_ends_a_command_before_its_time_is_its_status(
    ends: Callable[..., int], command: str, error: BaseException, status: Status
) -> None:
    assert ends(command, raises(error)) == status


def test_an_error_that_has_no_name_here_is_not_hidden(ends: Callable[..., int]) -> None:
    with pytest.raises(ZeroDivisionError):
        ends("run", raises(ZeroDivisionError()))


def test_a_file_that_cannot_be_written_is_not_taken_for_the_output(ends: Callable[..., int]) -> None:
    with pytest.raises(OSError, match=r"postmaster\.pid"):
        ends("run", raises(OSError(errno.ENOSPC, "No space left on device", "postmaster.pid")))
