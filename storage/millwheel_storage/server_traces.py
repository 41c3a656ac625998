"""What is seen of the server of a directory from outside: its pid file, its command line, the lock that it holds.

Lives here: telling a server of this directory from one of another, and from a process that has its number by now.  Never
here: what is done about it (`embedded`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from pathlib import Path
from typing import IO, Final

MARK: Final = "millwheel.data"
"""A setting that names the server's directory on its command line, however the server itself names it."""


def taken(file: IO[bytes]) -> bool:
    """Take the lock of `file`, which all processes that inherit it hold too."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def pid_file(data: Path) -> list[str]:
    """The lines of postmaster.pid of the cluster in `data`; none without it."""
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


def status_of(data: Path) -> str:
    """What the server has written there of itself, such as "ready"; "" when it has written nothing."""
    lines = pid_file(data)
    return lines[7].strip() if len(lines) > 7 else ""


def running_pid(data: Path) -> int | None:
    """The pid in postmaster.pid if that process is a Postgres of this directory, and not its reused number."""
    lines = pid_file(data)
    if not lines or not lines[0].strip().isdigit():
        return None
    pid = int(lines[0])
    words = command_line(pid)
    if not words or "postgres" not in words[0]:
        return None
    return pid if is_named(pid, data) or _stands_in(pid, data) else None


def is_named(pid: int, data: Path) -> bool:
    """Whether a process is a Postgres that was started for `data`, which may be gone."""
    words = command_line(pid)
    return bool(words) and "postgres" in words[0] and not {str(data), f"{MARK}={data}"}.isdisjoint(words)


def place_of(directory: Path) -> tuple[int, int] | None:
    """Device and inode, whatever name leads there; None when nothing does."""
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _stands_in(pid: int, data: Path) -> bool:
    """Whether a process works in `data`, as each of Postgres does: true after the directory was moved, too."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cwd").samefile(data)
    return False


def command_line(pid: int) -> list[str]:
    """The arguments of a process; empty when it is gone or a zombie."""
    if Path("/proc/self/cmdline").exists():
        try:
            return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last: it is of another user, and hidden
            return []
    shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
    text = shown.stdout.decode(errors="replace").strip()
    # ps cannot show where an argument ends: find the directory between its neighbours.
    head, found, rest = text.partition(" -D ")
    return [head, rest.partition(" -c ")[0]] if found else []
