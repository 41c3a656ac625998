"""An embedded Postgres of a root process: it opens no directory, adds no user, and works below a directory that is closed."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from millwheel.errors import StoreError
from millwheel_storage import privileges
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.privileges import closed_to, reachable_programs, server_user
from millwheel_storage.programs import binaries

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as somebody else"),
]


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory through which nobody but root passes, and one in it."""
    with tempfile.TemporaryDirectory(prefix="mw-", dir="/tmp") as top:
        inner = Path(top, "closed", "inner")
        inner.mkdir(parents=True)
        os.chmod(top, 0o755)
        inner.parent.chmod(0o700)
        yield inner


def modes(path: Path) -> dict[Path, int]:
    return {folder: stat.S_IMODE(folder.stat().st_mode) for folder in (path, *path.parents)}


def test_it_runs_below_a_closed_directory_and_changes_nothing_around_it(closed: Path) -> None:
    before, users = modes(closed), Path("/etc/passwd").read_bytes()
    directory = closed / "store" / "postgres"
    with EmbeddedPostgres(directory) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t AS SELECT generate_series(1, 10000) AS x")
        with EmbeddedPostgres(directory) as second:
            assert (second.pid or 0) == (server.pid or 1)
        sockets = server.socket_directory
        assert sockets.stat().st_uid == (directory / "postgres").stat().st_uid != 0
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert EmbeddedPostgres(directory).pid is None
    with EmbeddedPostgres(directory) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (10_000,)
    assert modes(closed) == before
    assert Path("/etc/passwd").read_bytes() == users
    assert not sockets.exists()


def test_the_server_has_no_group_of_root(closed: Path) -> None:
    before = os.getgroups()
    os.setgroups([0, 4242])
    try:
        with EmbeddedPostgres(closed / "postgres") as server:
            status = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    finally:
        os.setgroups(before)
    assert [line.split()[1:] for line in status if line.startswith("Groups:")] == [[]]


def test_the_user_is_the_one_that_is_told_or_that_made_the_cluster(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = closed / "postgres"
    data.mkdir()
    usual = server_user(data)
    assert usual is not None
    assert usual.pw_name in privileges.USUAL_USERS
    (data / "PG_VERSION").write_text("18")
    os.chown(data, pwd.getpwnam("daemon").pw_uid, -1)
    assert server_user(data) == pwd.getpwnam("daemon")
    monkeypatch.setenv(privileges.USER_VARIABLE, "nobody")
    assert server_user(data) == pwd.getpwnam("nobody")
    for name, words in {"root": "does not run as root", "no such user": "there is no user 'no such user'"}.items():
        monkeypatch.setenv(privileges.USER_VARIABLE, name)
        with pytest.raises(StoreError, match=words):
            server_user(data)


def test_where_it_cannot_stand_in_a_closed_directory_the_error_names_that(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel_storage.embedded.can_stand_in", lambda: False)
    with pytest.raises(StoreError, match=rf"who cannot pass through {closed.parent}: name another directory"):
        EmbeddedPostgres(closed / "postgres").start()


def test_programs_in_a_closed_directory_are_copied_once(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = binaries()
    package = closed / "site-packages" / installed.parent.parent.name
    shutil.copytree(installed.parent, package / installed.parent.name, ignore=shutil.ignore_patterns("include"))
    libraries = installed.parent.parent.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, package.with_name(libraries.name))
    hidden = package / installed.parent.name / "bin"
    monkeypatch.setattr("millwheel_storage.embedded.binaries", lambda _: hidden)
    copies = closed.parent.parent / "copies"
    copies.mkdir()
    copies.chmod(0o755)
    monkeypatch.setattr(privileges, "COPIES", copies)
    nobody = pwd.getpwnam("nobody")
    assert closed_to(nobody, hidden) == closed.parent
    with EmbeddedPostgres(closed / "postgres") as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    (made,) = copies.iterdir()
    before = made.stat().st_ino
    assert reachable_programs(hidden, nobody).is_relative_to(made)
    assert [path.stat().st_ino for path in copies.iterdir()] == [before]
    made.chmod(0o777)
    with pytest.raises(StoreError, match="is not ours; remove it"):
        reachable_programs(hidden, nobody)


@pytest.fixture
def copies(closed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies go in a test: everybody can pass through it."""
    found = closed.parent.parent / "copies"
    found.mkdir(mode=0o755)
    monkeypatch.setattr(privileges, "COPIES", found)
    return found


def programs_in(closed: Path) -> Path:
    """A wheel with a program, its libraries and what it reads, in a directory that is closed."""
    install = closed / "wheel" / "pginstall"
    for part in ("bin", "lib", "share"):
        (install / part).mkdir(parents=True)
    (install / "bin" / "postgres").write_text("of the wheel")
    return install / "bin"


def led_elsewhere(copy: Path) -> None:
    copy.symlink_to(copy.rename(copy.with_name("elsewhere")))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda copy: copy.chmod(0o775),
        lambda copy: copy.chmod(0o757),
        lambda copy: os.chown(copy, pwd.getpwnam("daemon").pw_uid, -1),
        led_elsewhere,
    ],
    ids=["group", "all", "owner", "link"],
)
def test_programs_that_somebody_else_could_exchange_are_not_run(
    closed: Path, copies: Path, spoil: Callable[[Path], None]
) -> None:
    programs, nobody = programs_in(closed), pwd.getpwnam("nobody")
    assert (reachable_programs(programs, nobody) / "postgres").read_text() == "of the wheel"
    (copy,) = copies.iterdir()
    spoil(copy)
    with pytest.raises(StoreError, match=f"{copy} is not ours; remove it"):
        reachable_programs(programs, nobody)


def test_programs_that_have_changed_are_copied_again(closed: Path, copies: Path) -> None:
    programs, nobody = programs_in(closed), pwd.getpwnam("nobody")
    first = reachable_programs(programs, nobody)
    (programs / "postgres").write_text("of the next wheel")
    os.utime(programs / "postgres", (1, 1))
    assert (reachable_programs(programs, nobody) / "postgres").read_text() == "of the next wheel"
    assert (first / "postgres").read_text() == "of the wheel", "a server may run it"


def test_a_copy_is_whole_or_there_is_none(closed: Path, copies: Path) -> None:
    programs = programs_in(closed)
    install = programs.parent
    (install / "share").rmdir()
    with pytest.raises(StoreError, match="cannot copy the programs of Postgres to"):
        reachable_programs(programs, pwd.getpwnam("nobody"))
    assert [*copies.iterdir()] == []
    (install / "share").mkdir()
    for _ in range(2):  # another process may be first
        privileges._copy(install.parent, install, copies / "made")
    assert [*copies.iterdir()] == [copies / "made"]


@pytest.mark.parametrize(
    ("owner", "group", "mode", "is_open"),
    [
        ("nobody", "root", 0o100, True),
        ("nobody", "root", 0o011, False),
        ("root", "nobody", 0o710, True),
        ("root", "nobody", 0o701, False),
        ("root", "root", 0o701, True),
        ("root", "root", 0o710, False),
    ],
)
def test_who_may_pass_is_said_by_the_owner_or_the_group_or_else_by_what_is_for_all(
    closed: Path, owner: str, group: str, mode: int, is_open: bool
) -> None:
    """Linux asks one of the three only."""
    nobody, way = pwd.getpwnam("nobody"), closed.parent
    os.chown(way, pwd.getpwnam(owner).pw_uid, nobody.pw_gid if group == "nobody" else 0)
    way.chmod(mode)
    closed.chmod(0o755)
    assert closed_to(nobody, closed) == (None if is_open else way)
    passes = subprocess.run(
        ["ls", closed], user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[], capture_output=True
    )
    assert (passes.returncode == 0) is is_open


def test_a_directory_without_a_cluster_says_nothing_of_the_user(closed: Path) -> None:
    """Somebody may have made it, and whoever that is would have all that is kept there."""
    data = closed / "postgres"
    data.mkdir()
    os.chown(data, pwd.getpwnam("daemon").pw_uid, -1)
    found = server_user(data)
    assert found is not None
    assert found.pw_name in privileges.USUAL_USERS
    (data / "PG_VERSION").write_text("18")
    os.chown(data, 0, 0)  # root has copied a cluster there
    assert server_user(data) == found
