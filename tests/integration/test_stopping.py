"""A run is stopped while its hooks are slow, and run where an event loop is running."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, TextCoder, ValueCell, subscribe
from millwheel.committed import Committed
from millwheel.launch import arun, run
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from tests.patience import WAIT_S

pytestmark = pytest.mark.postgres

SLOW = """
import os, sys, time
from millwheel import Computation, JsonCoder, Pipeline, Stream, TextCoder, ValueCell, subscribe
from millwheel_injectors import IterableSource

words = Stream("words", TextCoder())

class Slow(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        self.seen.set(self.seen.get() + 1)
        if "QUICK" not in os.environ:
            open("begun", "a").close()
            time.sleep(float(os.environ["SLEEP_S"]))
            with open("done", "a") as done:
                done.write("x")

pipeline = Pipeline("slow")
pipeline.inject(IterableSource("text", [(f"w{i % 3}", i) for i in range(100)]), into=words)
pipeline.add(Slow, [subscribe(words, str)])
"""


def seen(out: str) -> int:
    return sum(int(line.split("\t")[2]) for line in out.splitlines())


def busy_s(command: str) -> float:
    """What a busy machine adds to the second that a stop and its checkpoint take; a command that does nothing tells."""
    began = time.monotonic()
    subprocess.run([command, "--version"], capture_output=True, check=True)
    return 3 * max(0.0, time.monotonic() - began - 0.5)


@pytest.mark.parametrize(
    ("number", "sleep_s", "hooks", "lost"),
    [
        (signal.SIGINT, "0.1", 40, 1),
        (signal.SIGTERM, "60", 0, 1),
        pytest.param(signal.SIGTERM, "0.1", 40, 1, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, "60", 0, 1, marks=pytest.mark.long),
    ],
)
def test_ctrl_c_during_slow_hooks_ends_soon_and_keeps_what_was_done(
    tmp_path: Path, number: signal.Signals, sleep_s: str, hooks: int, lost: int
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = str(Path(sys.executable).with_name("millwheel"))
    environ = {**os.environ, "SLEEP_S": sleep_s}
    done = tmp_path / "done"
    # The server stays when a run leaves: what is measured is the run, not the last checkpoint of a Postgres.
    with (
        EmbeddedPostgres(tmp_path / ".millwheel" / "postgres"),
        subprocess.Popen(
            [command, "run", "slow:pipeline"], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        began = time.monotonic()
        while not (tmp_path / "begun").exists() or (done.stat().st_size if done.exists() else 0) < hooks:
            assert process.poll() is None
            assert time.monotonic() - began < 180  # on a busy machine a start alone may take ten
            time.sleep(0.05)
        asked = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S)
        assert time.monotonic() - asked < 2 + busy_s(command)
        assert (process.returncode, err) == (130, "millwheel: stopped; run it again to resume\n")
        ran = done.stat().st_size if done.exists() else 0

        def ask(*arguments: str) -> str:
            given = {**environ, "QUICK": "1"}
            return subprocess.run([command, *arguments], cwd=tmp_path, env=given, capture_output=True, text=True).stdout

        kept = seen(ask("state", "scan", "slow:pipeline", "Slow"))
        assert ran - lost <= kept <= ran
        ask("run", "slow:pipeline")
        assert seen(ask("state", "scan", "slow:pipeline", "Slow")) == 100


HANGING = """
import os, time
from millwheel import Computation, Pipeline, Stream, TextCoder, subscribe
from millwheel.search import BlockingCall
from millwheel_injectors import IterableSource

words = Stream("words", TextCoder())

class Source(IterableSource):
    def search(self, known):
        yield BlockingCall(lambda: hang("files"))
        return (yield from super().search(known))

def hang(where):
    if os.environ["WHERE"] == where:
        open("begun", "a").close()
        time.sleep(3600)

def rows():
    hang("rows")
    return [("a", 1)]

class Hanging(Computation[str]):
    def setup(self):
        hang("setup")
    def teardown(self):
        hang("teardown")
    def ProcessRecord(self, context, record):
        pass

pipeline = Pipeline("hanging_" + os.environ["WHERE"])
pipeline.inject(Source("text", rows), into=words)
pipeline.add(Hanging, [subscribe(words, str)])
"""


@pytest.mark.parametrize("where", ["setup", "teardown", "rows", "files"])
def test_ctrl_c_ends_a_run_whose_setup_teardown_or_source_hangs(
    tmp_path: Path, postgres: EmbeddedPostgres, where: str
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    command = [str(Path(sys.executable).with_name("millwheel")), "run", "hanging:pipeline", "--store", postgres.url]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "WHERE": where}, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("millwheel: stopped")


DEAF = """
import os, time
from millwheel import Computation, JsonCoder, Pipeline, Stream, TextCoder, ValueCell, subscribe
from millwheel_injectors import IterableSource

words = Stream("words", TextCoder())

class Deaf(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        self.seen.set(self.seen.get() + 1)
        while "DEAF" in os.environ and record.value == "w50":
            try:
                open("begun", "a").close()
                time.sleep(3600)
            except BaseException:
                pass

pipeline = Pipeline("deaf")
pipeline.inject(IterableSource("text", [(f"w{i}", i) for i in range(100)]), into=words)
pipeline.add(Deaf, [subscribe(words, str)], work_limit_records=10)
"""


def test_the_third_ctrl_c_ends_a_run_that_does_not_listen_and_the_next_one_resumes(
    tmp_path: Path, postgres: EmbeddedPostgres
) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    command = [str(Path(sys.executable).with_name("millwheel")), "run", "deaf:pipeline", "--store", postgres.url]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "DEAF": "1"}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while not (tmp_path / "begun").exists():
                assert process.poll() is None
                time.sleep(0.05)
            presses = 0
            while process.poll() is None and presses < 100:
                process.send_signal(signal.SIGINT)
                presses += 1
                time.sleep(0.5)  # those of one moment are one
        finally:
            process.kill()
        _, err = process.communicate(timeout=WAIT_S)
    assert presses >= 3
    assert (process.returncode, err) == (130, "millwheel: ended at once; run it again to resume\n")
    resumed = subprocess.run([*command, "--quiet"], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S)
    assert (resumed.returncode, resumed.stdout, resumed.stderr) == (0, "", "")
    asked = subprocess.run(
        [command[0], "state", "scan", *command[2:], "Deaf"], cwd=tmp_path, capture_output=True, text=True
    )
    assert seen(asked.stdout) == 100


STRUCK = """
import os, signal, sys, weakref

class Thing:
    pass

def strike(gone=None):
    os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    "its handler runs before the next line"

class Striker:
    def find_spec(self, name, path=None, target=None):
        if name != os.environ["STRUCK_AT"]:
            return
        lost = os.environ.get("LOST")
        if lost is None:
            strike()
        elif lost == "caught":  # as some libraries do, around what they need not have
            try:
                strike()
            except BaseException:
                pass
        else:  # Python ignores what a callback raises, and imports have such callbacks
            thing = Thing()
            watched = weakref.ref(thing, strike)
            del thing

sys.meta_path.insert(0, Striker())
"""
"""A `sitecustomize` that sends the process a signal when it begins to import a certain module."""

PLACES = ["millwheel.cli.main", "click", "slow", "millwheel.api.computation", "millwheel.launch", "uvloop"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(["millwheel"], signal.SIGINT, id="script, SIGINT"),
        pytest.param(["python", "-m", "millwheel"], signal.SIGTERM, id="module, SIGTERM"),
        pytest.param(["millwheel"], signal.SIGTERM, id="script, SIGTERM", marks=pytest.mark.long),
        pytest.param(["python", "-m", "millwheel"], signal.SIGINT, id="module, SIGINT", marks=pytest.mark.long),
    ],
)
def test_a_signal_while_it_starts_ends_it_in_order(
    tmp_path: Path, command: list[str], place: str, number: signal.Signals
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "sitecustomize.py").write_text(STRUCK)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "STRUCK_AT": place, "SIGNAL": str(int(number)), "QUICK": "1"}
    program = str(Path(sys.executable).with_name(command[0]))
    asked = [program, *command[1:], "run", "slow:pipeline", "--quiet"]
    ended = subprocess.run(asked, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=WAIT_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "millwheel: stopped\n")
    assert not (tmp_path / ".millwheel" / "postgres" / "postgres" / "postmaster.pid").exists()


@pytest.mark.parametrize("place", ["millwheel.cli.main", "slow", "uvloop"])
@pytest.mark.parametrize(
    ("number", "lost"), [(signal.SIGINT, "ignored"), (signal.SIGTERM, "ignored"), (signal.SIGTERM, "caught")]
)
def test_a_signal_whose_exception_is_lost_while_it_starts_ends_it_in_order(
    tmp_path: Path, place: str, number: signal.Signals, lost: str
) -> None:
    """What is imported last may leave the run its own handler when the signal comes again: then that one stops it."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "sitecustomize.py").write_text(STRUCK)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "STRUCK_AT": place, "SIGNAL": str(int(number)), "LOST": lost}
    asked = [str(Path(sys.executable).with_name("millwheel")), "run", "slow:pipeline", "--quiet"]
    ended = subprocess.run(
        asked, cwd=tmp_path, env=environ | {"SLEEP_S": "0.1"}, capture_output=True, text=True, timeout=WAIT_S
    )
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr in ("millwheel: stopped\n", "millwheel: stopped; run it again to resume\n")


@pytest.mark.parametrize("command", ["run", pytest.param("up", marks=pytest.mark.long)])
def test_a_closed_terminal_ends_it_in_order(tmp_path: Path, command: str) -> None:
    # The process was gone at once, and the Postgres stayed behind.
    (tmp_path / "slow.py").write_text(SLOW)
    millwheel = str(Path(sys.executable).with_name("millwheel"))
    terminal, slave = pty.openpty()
    script = "import fcntl, os, sys, termios; fcntl.ioctl(1, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", script, millwheel, command, "slow:pipeline"],
        cwd=tmp_path, env={**os.environ, "SLEEP_S": "0.1"}, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    ) as process:  # fmt: skip
        os.close(slave)
        threading.Thread(target=drained, args=(terminal, tmp_path / "begun"), daemon=True).start()
        assert process.wait(WAIT_S) == 130
    assert not (tmp_path / ".millwheel" / "postgres" / "postgres" / "postmaster.pid").exists()
    assert not [line for line in processes() if str(tmp_path) in line]


def drained(terminal: int, begun: Path) -> None:
    """Show what is printed, so to speak, until the run has begun; then close the terminal."""
    while not begun.exists():
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 4096)
    os.close(terminal)


def processes() -> list[str]:
    return subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_run_that_was_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.replace("self.seen.set(", "os.kill(os.getpid(), 1); self.seen.set("))
    script = f"trap '' HUP; exec '{sys.executable}' -m millwheel run slow:pipeline --quiet"
    ended = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"QUICK": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_sigterm_that_was_to_be_ignored_is(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "sitecustomize.py").write_text(STRUCK)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "STRUCK_AT": "slow", "SIGNAL": str(int(signal.SIGTERM))}
    script = f"trap '' TERM; exec '{sys.executable}' -m millwheel run slow:pipeline --quiet"
    ended = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environ | {"QUICK": "1"}, capture_output=True, text=True, timeout=WAIT_S
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


words = Stream("words", TextCoder())


class Count(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.seen.set(self.seen.get() + 1)


def count(name: str) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(IterableSource("text", [(f"w{i % 3}", i) for i in range(100)]), into=words)
    pipeline.add(Count, [subscribe(words, str)])
    return pipeline


def test_a_run_in_a_running_loop_lets_the_loop_go_on(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        progress = await arun(count(pipeline), postgres.url)
        ticking.cancel()
        assert progress.records == 100
        return ticks

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    assert asyncio.run(main()) > 5
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_a_plain_run_works_inside_a_running_loop(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def cell_of_a_notebook() -> int:
        return run(count(pipeline), postgres.url).records

    assert asyncio.run(cell_of_a_notebook()) == 100


def test_a_task_that_is_cancelled_ends_the_run_and_the_next_one_resumes(tmp_path: Path) -> None:
    began = threading.Event()

    class Slow(Count):
        def ProcessRecord(self, context: Context, record: Record[str]) -> None:
            super().ProcessRecord(context, record)
            began.set()
            time.sleep(0.01)

    def slow() -> Pipeline:
        pipeline = Pipeline("cancelled")
        pipeline.inject(IterableSource("text", [(f"w{i % 3}", i) for i in range(300)]), into=words)
        pipeline.add(Slow, [subscribe(words, str)], name="Count", work_limit_records=10)
        return pipeline

    async def cancelled() -> None:
        task = asyncio.create_task(arun(slow(), data=tmp_path))
        while not began.is_set() and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert EmbeddedPostgres(tmp_path / "postgres").pid is None
    assert run(slow(), data=tmp_path).finished
    with Committed(slow(), data=tmp_path) as committed:
        assert sum(cells["seen"] for _, cells in committed.states("Count")) == 300
