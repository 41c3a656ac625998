"""Processes that are kept running: small real ones, which end, fail, are killed, or do not listen."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from millwheel import limits
from millwheel.runtime.supervisor import ENDS, ChildPlan, Supervisor, Verdicts

VERDICTS = Verdicts(finished=frozenset({0, 3}), hopeless=frozenset({2}), doubtful=frozenset({1}))

Said = list[tuple[str, bool, str]]


def child(name: str, code: str, is_worker: bool = True) -> ChildPlan:
    return ChildPlan(name, is_worker, [sys.executable, "-u", "-c", code])


def family(*plans: ChildPlan) -> tuple[Supervisor, Said]:
    said: Said = []
    return Supervisor(plans, VERDICTS, lambda *line: said.append(line), dict(os.environ)), said


def run(supervisor: Supervisor, *then: Callable[[], None], limit_s: float = 60) -> int | None:
    """To the end; each of `then` is called half a second after the last one, once all processes run."""

    async def main() -> int | None:
        async with asyncio.timeout(limit_s):
            running = asyncio.create_task(supervisor.run())
            for call in then:
                await asyncio.sleep(0.5)
                call()
            return await running

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESTART_FIRST_DELAY_S", 0.01)


STAYS = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\nprint('here')\nsignal.pause()"


def test_a_family_whose_workers_finish_has_their_largest_status() -> None:
    supervisor, said = family(child("a", "print('one')\nprint('two')"), child("b", "raise SystemExit(3)"))
    assert run(supervisor) == 3
    assert said == [("a", False, "one"), ("a", False, "two")]


def test_a_process_that_is_killed_is_started_again_and_one_that_has_finished_is_not(tmp_path: Path) -> None:
    twice = f"import os, signal\nfrom pathlib import Path\np = Path({str(tmp_path / 'been')!r})\n"
    twice += "if not p.exists():\n    p.touch()\n    os.kill(os.getpid(), signal.SIGKILL)\nprint('again')"
    supervisor, said = family(child("a", twice))
    assert run(supervisor) == 0
    assert said == [("up", True, "a was killed by SIGKILL; it is started again"), ("a", False, "again")]


def test_a_controller_is_started_again_while_a_worker_lives_and_not_after_it(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.touch()
    leads = f"open({str(starts)!r}, 'a').write('x')\nimport time\ntime.sleep(0.05)\nraise SystemExit(5)"
    works = f"import time\nwhile len(open({str(starts)!r}).read()) < 4: time.sleep(0.01)"
    supervisor, _ = family(child("c", leads, is_worker=False), child("w", works))
    assert run(supervisor) == 0
    assert 4 <= len(starts.read_text()) <= 6


def test_workers_do_not_wait_for_ever_for_controllers_that_have_all_seen_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The run was over, or had left too much over, before any worker had joined: nobody was there who would have told them.
    monkeypatch.setattr(limits, "UP_WORKER_LIMIT_S", 0.1)
    ends = child("c1", "raise SystemExit(3)", is_worker=False), child("c2", "raise SystemExit(3)", is_worker=False)
    supervisor, said = family(child("w", STAYS), *ends)
    assert run(supervisor) == 3
    assert [line for who, _, line in said if who == "up"] == []


def test_workers_go_on_while_one_controller_has_not_seen_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UP_WORKER_LIMIT_S", 0.1)
    works = "import time\ntime.sleep(1)"
    supervisor, _ = family(
        child("w", works), child("c1", "raise SystemExit(3)", is_worker=False), child("c2", STAYS, is_worker=False)
    )
    assert run(supervisor) == 3


def test_a_controller_that_saw_the_end_of_the_run_is_not_started_again(tmp_path: Path) -> None:
    # It was, while the last worker was closing its channels, and waited for workers for ever.
    starts = tmp_path / "starts"
    leads = f"open({str(starts)!r}, 'a').write('x')"
    supervisor, _ = family(child("c", leads, is_worker=False), child("w", "import time\ntime.sleep(1)"))
    assert run(supervisor) == 0
    assert starts.read_text() == "x"


def test_a_worker_that_dies_after_another_saw_the_end_is_not_started_again(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    dies = f"open({str(starts)!r}, 'a').write('x')\nimport time, os\ntime.sleep(0.6)\nos.kill(os.getpid(), 9)"
    supervisor, said = family(child("a", ""), child("b", dies))
    assert run(supervisor) == 0
    assert starts.read_text() == "x"
    assert said == []


def test_stop_ends_all_in_order_and_says_that_it_was_stopped() -> None:
    supervisor, said = family(child("a", STAYS), child("c", STAYS, is_worker=False))
    assert run(supervisor, lambda: None, supervisor.stop) is None
    assert sorted(said) == [("a", False, "here"), ("c", False, "here")]


def test_a_family_that_cannot_go_on_is_ended_with_the_reason_and_a_status() -> None:
    supervisor, said = family(child("a", STAYS), child("c", STAYS, is_worker=False))
    assert run(supervisor, lambda: supervisor.give_up("d was removed"), lambda: supervisor.give_up("again")) == 1
    assert [line for line in said if line[0] == "up"] == [("up", True, "d was removed: the cluster is stopped")]


def test_a_controller_that_stays_after_the_end_of_the_run_is_asked_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UP_CONTROLLER_LIMIT_S", 0.5)
    supervisor, said = family(child("a", ""), child("c", STAYS, is_worker=False))
    assert run(supervisor, limit_s=60) == 0
    assert said == [("c", False, "here")]


def test_stop_ends_a_controller_that_stays_at_once() -> None:
    supervisor, _ = family(child("a", ""), child("c", STAYS, is_worker=False))
    assert run(supervisor, lambda: None, supervisor.stop, limit_s=limits.UP_CONTROLLER_LIMIT_S - 1) in (0, None)


def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UP_STOP_LIMIT_S", 0.3)
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here')\nwhile True: signal.pause()"
    supervisor, _ = family(child("a", deaf))
    assert run(supervisor, lambda: None, supervisor.stop, limit_s=60) is None


@pytest.mark.parametrize(("status", "starts"), [(2, 1), (1, 5)])
def test_a_process_that_fails_again_and_again_stops_the_cluster(status: int, starts: int) -> None:
    supervisor, said = family(child("a", f"raise SystemExit({status})"), child("b", STAYS))
    assert run(supervisor) == status
    of_up = [line for name, _, line in said if name == "up"]
    assert of_up[:-1] == [f"a ended with status {status}; it is started again"] * (starts - 1)
    assert of_up[-1] == f"a ended with status {status}: the cluster is stopped"


@pytest.mark.parametrize("status", [1, 2])
def test_a_controller_that_fails_for_good_stops_the_cluster(status: int) -> None:
    supervisor, said = family(child("w", STAYS), child("c", f"raise SystemExit({status})", is_worker=False))
    assert run(supervisor) == status
    assert said[-1] == ("up", True, f"c ended with status {status}: the cluster is stopped")


def test_a_controller_that_does_not_end_when_the_run_is_over_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UP_CONTROLLER_LIMIT_S", 1.0)
    monkeypatch.setattr(limits, "UP_STOP_LIMIT_S", 0.2)
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    signal.pause()"
    supervisor, _ = family(child("w", ""), child("c", deaf, is_worker=False))
    assert run(supervisor) == 0


def test_who_stops_all_does_not_wait_until_a_process_would_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RESTART_FIRST_DELAY_S", "RESTART_LONGEST_DELAY_S"):
        monkeypatch.setattr(limits, name, 3_600.0)
    supervisor, said = family(child("w", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"))

    def stop() -> None:
        assert said == [("up", True, "w was killed by SIGKILL; it is started again")]
        supervisor.stop()

    assert run(supervisor, lambda: None, lambda: None, stop) is None


def test_deaths_by_signals_never_stop_the_cluster(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    code = f"import os\nf = open({str(starts)!r}, 'a+')\nf.seek(0)\nn = len(f.read())\nf.write('x')\nf.close()\n"
    supervisor, _ = family(child("a", code + "if n < 8: os.kill(os.getpid(), 9)"))
    assert run(supervisor) == 0
    assert len(starts.read_text()) == 9


def test_only_deaths_soon_after_the_start_count_in_a_row() -> None:
    plan = ChildPlan("worker-1", True, [])
    family = Supervisor([plan], ENDS, lambda *_: None, {})
    (child,) = family._children
    counted = []
    for status, old in ((-9, False), (-9, False), (-9, True), (1, False), (1, True), (1, False)):
        family._note(child, status, old)
        counted.append((child.deaths, child.failures))
    assert counted == [(1, 0), (2, 0), (1, 0), (2, 1), (1, 1), (2, 2)]


def test_no_process_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"import os, pathlib, sys\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\nsys.stdin.read()"
    supervise = (
        "import asyncio, os, sys\nfrom millwheel.runtime.supervisor import *\n"
        f"child = ChildPlan('a', True, [sys.executable, '-c', {code!r}])\n"
        "verdicts = Verdicts(frozenset({0}), frozenset(), frozenset())\n"
        "asyncio.run(Supervisor([child], verdicts, print, dict(os.environ)).run())"
    )

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", supervise)
        async with asyncio.timeout(180):
            while not pid.exists() or not pid.read_text():
                await asyncio.sleep(0.02)
            process.kill()
            await process.wait()
            stat = Path(f"/proc/{pid.read_text()}/stat")
            while stat.exists() and stat.read_bytes().rpartition(b")")[2].split()[0] != b"Z":
                await asyncio.sleep(0.02)

    asyncio.run(main())


def test_a_very_long_line_is_passed_on_in_pieces() -> None:
    supervisor, said = family(child("a", "print('x' * 3_000_000)\nprint('end', end='')"))
    assert run(supervisor) == 0
    assert "".join(line for _, _, line in said) == "x" * 3_000_000 + "end"
    assert said[-1] == ("a", False, "end")


def test_the_pids_of_what_runs_are_known() -> None:
    supervisor, _ = family(child("a", STAYS))
    found: list[dict[str, int]] = []
    assert run(supervisor, lambda: found.append(supervisor.processes()), supervisor.stop) is None
    assert found[0].keys() == {"a"}
    assert supervisor.processes() == {}
    with pytest.raises(ProcessLookupError):
        os.kill(found[0]["a"], signal.SIGCONT)


def test_processes_that_do_not_listen_are_killed_when_it_is_told_for_the_third_time() -> None:
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here', flush=True)\ntime.sleep(3600)"
    supervisor, _ = family(child("a", deaf), child("b", deaf, is_worker=False))
    began = time.monotonic()
    assert run(supervisor, supervisor.stop, supervisor.stop, supervisor.stop) is None
    assert time.monotonic() - began < limits.UP_STOP_LIMIT_S


LEAVES = "import subprocess\nsubprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
"""A hook may start a process that outlives its worker, and keeps the pipes of the worker open."""


@pytest.fixture
def left_behind() -> Iterator[None]:
    """What is left behind ends after the test."""
    before = sleepers()
    yield
    for process in sleepers() - before:
        os.kill(process, signal.SIGKILL)


def sleepers() -> set[int]:
    commands = {int(path.parent.name): path for path in Path("/proc").glob("[0-9]*/cmdline")}
    found = set()
    for process, path in commands.items():
        with suppress(OSError):
            if path.read_bytes() == b"sleep\x003600\x00":
                found.add(process)
    return found


@pytest.mark.usefixtures("left_behind")
def test_a_process_is_started_again_though_one_that_it_left_keeps_its_pipes(tmp_path: Path) -> None:
    twice = f"import os\nfrom pathlib import Path\np = Path({str(tmp_path / 'been')!r})\n"
    twice += (
        "if not p.exists():\n    p.touch()\n    print('first', flush=True)\n    os.kill(os.getpid(), 9)\nprint('again')"
    )
    supervisor, said = family(child("a", LEAVES + twice))
    assert run(supervisor, limit_s=30) == 0
    assert said == [
        ("a", False, "first"), ("up", True, "a was killed by SIGKILL; it is started again"), ("a", False, "again"),
    ]  # fmt: skip


@pytest.mark.usefixtures("left_behind")
def test_a_process_that_was_left_behind_does_not_keep_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UP_STOP_LIMIT_S", 0.3)
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here')\nwhile True: signal.pause()"
    supervisor, said = family(child("a", LEAVES + deaf))
    assert run(supervisor, lambda: None, lambda: None, supervisor.stop, limit_s=30) is None
    assert said == [("a", False, "here")]


def test_what_a_left_process_prints_is_passed_on_as_long_as_there_is_somebody_who_hears_it(tmp_path: Path) -> None:
    done = tmp_path / "done"
    later = f"import pathlib, time\ntime.sleep(2)\nprint('late', flush=True)\npathlib.Path({str(done)!r}).touch()"
    leaves = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {later!r}])"
    stays = f"import pathlib, time\nwhile not pathlib.Path({str(done)!r}).exists(): time.sleep(0.02)"
    supervisor, said = family(child("a", leaves), child("b", stays))
    assert run(supervisor, limit_s=30) == 0
    assert said == [("a", False, "late")]


def test_a_process_that_is_being_made_when_all_are_stopped_is_stopped_too() -> None:
    supervisor, _ = family(child("a", STAYS), child("b", STAYS, is_worker=False))

    async def main() -> int | None:
        async with asyncio.timeout(30):
            running = asyncio.create_task(supervisor.run())
            while not any(isinstance(task, asyncio.Task) for task in asyncio.all_tasks() - {asyncio.current_task()}):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not supervisor.processes()
            supervisor.stop()
            return await running

    assert asyncio.run(main()) is None


@pytest.mark.parametrize("status", [1, 2])
def test_how_a_process_ends_that_was_told_to_is_no_failure(status: int) -> None:
    ends_so = STAYS.replace("130", str(status))
    supervisor, said = family(*(child(f"a{n}", ends_so) for n in range(6)))
    assert run(supervisor, lambda: None, supervisor.stop) is None
    assert [line for who, _, line in said if who == "up"] == []


def test_a_process_may_print_bytes_that_are_no_text() -> None:
    supervisor, said = family(child("a", "import os\nos.write(1, b'a\\xff\\n')\nos.write(2, b'b\\xfe\\nend\\xfd')"))
    assert run(supervisor) == 0
    odd = "\N{REPLACEMENT CHARACTER}"
    assert sorted(said) == [("a", False, f"a{odd}"), ("a", True, f"b{odd}"), ("a", True, f"end{odd}")]


def test_an_output_that_takes_no_more_is_the_error_of_the_family() -> None:
    def say(name: str, is_error: bool, line: str) -> None:
        said.append(line)
        raise OSError(errno.ENOSPC, "No space left on device")

    said: list[str] = []
    supervisor = Supervisor([child("a", "print('one')"), child("b", STAYS)], VERDICTS, say, dict(os.environ))
    with pytest.raises(OSError, match="No space left"):
        run(supervisor)
    assert len(said) == 1
    assert supervisor.processes() == {}, "they have ended in order"


def test_a_controller_that_dies_after_the_end_of_the_run_is_started_again_while_a_worker_has_not_seen_it(
    tmp_path: Path,
) -> None:
    """That worker would wait for ever: a controller tells it."""
    starts = tmp_path / "starts"
    starts.touch()
    leads = f"open({str(starts)!r}, 'a').write('x')\nimport time\ntime.sleep(0.5)\nraise SystemExit(5)"
    waits = f"import time\nwhile len(open({str(starts)!r}).read()) < 3: time.sleep(0.01)"
    supervisor, _ = family(child("c", leads, is_worker=False), child("a", ""), child("b", waits))
    assert run(supervisor, limit_s=30) == 0


def test_processes_have_the_environment_that_they_are_given_and_no_other() -> None:
    """It says where the store is, which no command line does."""
    said: Said = []
    shows = child("a", "import os\nprint(os.environ.get('GIVEN'), os.environ.get('HOME'))")
    supervisor = Supervisor([shows], VERDICTS, lambda *line: said.append(line), {"GIVEN": "here"})
    assert run(supervisor) == 0
    assert said == [("a", False, "here None")]


def test_ctrl_c_of_a_terminal_is_for_the_supervisor_which_ends_all_in_order() -> None:
    supervisor, said = family(child("a", "import os\nprint(os.getsid(0) == os.getpid())"))
    assert run(supervisor) == 0
    assert said == [("a", False, "True")]
