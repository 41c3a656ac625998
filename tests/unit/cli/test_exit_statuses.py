"""Each command that runs something ends with the status of how that has ended, whatever ends it."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel import launch, processes
from millwheel.cli import up
from millwheel.cli.main import main
from millwheel.cli.options import STORE_OPTIONS, variable
from millwheel.cli.status import Status
from millwheel.cluster import RunEnding
from millwheel.errors import Fenced, HookExited, HooksFail, PipelineFailed, StoreError, StoreUnavailable
from millwheel.host.over import Tolerance
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


class Noted:
    """Answers, and notes what it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.given: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.given, self.named = given, named
        return self.answer


SAID = {
    "run": {"cache": "2MiB", "allow-rejected": 3, "allow-quarantine": 2},
    "worker": {"cache": "2MiB", "name": "w-a", "lease": 7.5, "listen": "127.0.0.1:7001", "advertise": "h:1"},
    "controller": {"name": "c-a", "lease": 7.5, "listen": "[::1]:0", "allow-rejected": 3, "allow-quarantine": 2},
}


def say(settings: dict[str, Any], where: str, command: str, directory: Path, monkeypatch: Any) -> list[str]:
    """Give a command its settings in one of the three places; what is to be typed."""
    if where == "typed":
        return [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    if where == "environment":
        for name, value in settings.items():
            monkeypatch.setenv(variable(name), str(value))
    else:
        lines = [f"{name} = {value!r}" for name, value in settings.items()]
        (directory / "millwheel.toml").write_text("\n".join([f"[{command}]", *lines]))
    return []


@pytest.mark.parametrize("where", ["typed", "environment", "file"])
def test_what_is_said_reaches_what_runs_wherever_it_is_said(
    ends: Callable[..., int], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command, answer in (("run", REJECTED), ("worker", (STOPPED, False)), ("controller", None)):
        noted = Noted(answer)
        with monkeypatch.context() as patch:
            ends(command, noted, *say(SAID[command], where, command, tmp_path, patch))
        if command == "run":
            found = {name: noted.named[name] for name in ("cache_bytes", "allow_rejected", "allow_quarantine")}
            assert found == {"cache_bytes": 2 << 20, "allow_rejected": 3, "allow_quarantine": 2}
            assert noted.given[1:3] == ("postgresql://nowhere", ".millwheel")
            continue
        plan = noted.given[0]
        said = SAID[command]
        assert (plan.pipeline.name, plan.url, plan.name) == ("exits", "postgresql://nowhere", said["name"])
        assert (plan.listen, plan.advertise, plan.lease_us) == (said["listen"], said.get("advertise"), 7_500_000)
        if command == "worker":
            assert plan.cache_bytes == 2 << 20
        else:
            assert plan.allowed == Tolerance(2, 3)


def test_a_process_without_a_name_has_that_of_its_machine_and_its_number(ends: Callable[..., int]) -> None:
    names = []
    for command, answer in (("worker", (STOPPED, False)), ("controller", None)):
        noted = Noted(answer)
        ends(command, noted)
        names.append(noted.given[0].name)
    assert names == [f"{socket.gethostname()}-{os.getpid()}"] * 2


@pytest.mark.parametrize("quiet", [False, True])
def test_the_processes_of_a_cluster_are_told_what_is_said_to_up(ends: Callable[..., int], quiet: bool) -> None:
    found: list[Any] = []

    async def runs(*given: Any) -> int:
        found.extend(given)
        return 0

    said = ["--lease", "7.5", "--cache", "2MiB", "--allow-rejected", "3", "--verbose", *(["-q"] if quiet else [])]
    assert ends("up", runs, "--workers", "2", "--controllers", "1", *said) == 0
    plans, _, environment, _ = found
    more = ["--with-parent", "--lease", "7.5", "--log-format", "plain", *([] if quiet else ["--verbose"])]
    assert [(plan.name, list(plan.command[6:])) for plan in plans] == [
        ("controller-1", ["controller-1", *more, "--allow-rejected", "3"]),
        *(
            (name, [name, *more, *(["--quiet"] if quiet else []), "--cache", str(2 << 20)])
            for name in ("worker-1", "worker-2")
        ),
    ]
    assert (environment["MILLWHEEL_STORE"], environment[STORE_OPTIONS]) == ("postgresql://nowhere", "--store URL")
    assert not [word for plan in plans for word in plan.command if "postgresql" in word], "others can read it"


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["--conf", "spark.a=b"], "--conf goes with --on, which says where Spark is"),
        (["--certs", "c"], "--certs goes with --on, which says where Spark is"),
        (["--controllers", "0"], "--controllers 0 goes with --on, which says where Spark is"),
        (["--on", "local[2]", "--metrics", "127.0.0.1:9100"], "--metrics is for workers on this machine, and not with"),
        (
            ["--on", "local[2]", "--controllers", "0", "--allow-rejected", "3"],
            "--allow-rejected is for controllers, which",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_starts(
    ends: Callable[..., int], typed: list[str], says: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(up, "_on_spark", raises(AssertionError()))
    assert ends("up", raises(AssertionError()), *typed) == Status.USAGE
    assert says in capsys.readouterr().err


def test_every_object_of_a_process_names_it(ends: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    ends("worker", gives((DONE, True)), "--log-format", "json", "--name", "w-a")
    ends("controller", gives(None), "--log-format", "json", "--name", "c-a")
    captured = capsys.readouterr()
    found = [json.loads(line) for line in (captured.out + captured.err).splitlines()]
    assert [(one["pipeline"], one["role"], one["member"]) for one in found] == [
        ("exits", "worker", "w-a"),
        ("exits", "controller", "c-a"),
    ]
