"""A server, as it is seen from outside; with a real one in `test_embedded`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millwheel_storage.server_traces import (
    MARK,
    command_line,
    is_named,
    pid_file,
    place_of,
    running_pid,
    status_of,
    taken,
)

LINES = ["{pid}", "/some where", "1", "5432", "/socket", "", "  1 2", "ready   "]
"""What a server writes into postmaster.pid."""


@contextmanager
def called(*arguments: str, cwd: Path | str = "/") -> Iterator[int]:
    """A process that calls itself so, and works there; its pid."""
    process = subprocess.Popen(
        [*arguments[:1], "-c", "print(flush=True); input()", *arguments[1:]],
        executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def written(data: Path, pid: int) -> None:
    (data / "postmaster.pid").write_text("\n".join(LINES).format(pid=pid))


def test_what_the_server_has_written_of_itself(tmp_path: Path) -> None:
    assert (pid_file(tmp_path), status_of(tmp_path), running_pid(tmp_path)) == ([], "", None)
    (tmp_path / "postmaster.pid").write_text("\n".join(LINES[:7]).format(pid=7))
    assert status_of(tmp_path) == "", "it has not come so far"
    written(tmp_path, 7)
    assert status_of(tmp_path) == "ready"
    (tmp_path / "postmaster.pid").write_text("soon")
    assert running_pid(tmp_path) is None


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="ps cannot show where an argument ends")
@pytest.mark.parametrize(
    ("arguments", "is_it"),
    [
        (("postgres", "-D", "{data}"), True),
        (("postgres", "-D", ".", "-c", MARK + "={data}"), True),
        (("postgres", "-D", "{data}-2"), False),
        (("postgres", "-D", ".", "-c", MARK + "={data}-2"), False),
        (("vacuum", "-D", "{data}"), False),
    ],
)
def test_a_number_that_another_process_has_by_now_is_no_server(
    tmp_path: Path, arguments: tuple[str, ...], is_it: bool
) -> None:
    with called(*(one.format(data=tmp_path) for one in arguments)) as pid:
        written(tmp_path, pid)
        assert is_named(pid, tmp_path) is is_it
        assert running_pid(tmp_path) == (pid if is_it else None)
    assert not any(command_line(pid))
    assert running_pid(tmp_path) is None


def test_a_directory_is_told_by_where_it_is_and_not_by_its_name(tmp_path: Path) -> None:
    here, link = tmp_path / "here", tmp_path / "link"
    here.mkdir()
    link.symlink_to(here)
    assert place_of(here) == place_of(link) is not None
    here.rename(tmp_path / "there")
    assert place_of(here) is place_of(link) is None
    here.mkdir()
    assert len({place_of(here), place_of(tmp_path / "there"), place_of(tmp_path)}) == 3, "each is another one"
    (tmp_path / "file").touch()
    assert place_of(tmp_path / "file" / "below") is None


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="ps does not show where a process works")
@pytest.mark.parametrize(
    ("name", "where", "is_it"), [("postgres", "here", True), ("postgres", ".", False), ("vacuum", "here", False)]
)
def test_a_server_whose_directory_was_moved_is_known_by_where_it_works(
    tmp_path: Path, name: str, where: str, is_it: bool
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    with called(name, "-D", str(here), cwd=tmp_path / where) as pid:
        written(here, pid)
        here.rename(there)
        assert not is_named(pid, there)
        assert running_pid(there) == (pid if is_it else None)


def test_a_lock_is_held_by_whoever_has_inherited_it(tmp_path: Path) -> None:
    (tmp_path / "sign").touch()
    with (tmp_path / "sign").open("rb+") as first, (tmp_path / "sign").open("rb+") as second:
        assert taken(first)
        assert not taken(second)
        kept = os.dup(first.fileno())
        first.close()
        assert not taken(second)
        os.close(kept)
        assert taken(second)
