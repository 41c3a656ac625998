"""The user that an embedded Postgres runs as when we are root, and how it reaches its files.

Postgres refuses to run as root, so it runs as an unprivileged user that exists already.  No user is added, and no directory
is opened to others.  That user may be unable to pass through the directories above the data, such as `/root`.  Then the
server is started *in* its data directory and told to use `/proc/self/cwd`.  This works because a process may use the
directory it stands in whatever lies above it, and every process of Postgres stands in the data directory.  Its socket then
lies under /tmp, in a directory that the user owns.  Programs that the user cannot reach are copied to a place where it can.

Lives here: the choice of the user, what it can reach, the copy.  Never here: starting and stopping.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from millwheel.errors import StoreError

USER_VARIABLE: Final = "MILLWHEEL_POSTGRES_USER"
"""Names the user, instead of the choice that is made here."""

USUAL_USERS: Final = ("postgres", "nobody")
"""The first of these that the system has."""

HERE: Final = "/proc/self/cwd"
"""The directory in which a process stands, for Linux."""

COPIES: Final = Path("/var/tmp")
"""Where copies of the programs go: it outlives a restart of the machine, and everybody can pass through it."""


def server_user(data: Path) -> pwd.struct_passwd | None:
    """The user for the server of the cluster in `data`, or None for the current user."""
    if os.geteuid() != 0:
        return None
    told = os.environ.get(USER_VARIABLE)
    if told:
        return _told(told)
    owner = _owner(data)
    if owner is not None:  # it was made so
        return owner
    for name in USUAL_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise StoreError(
        f"Postgres does not run as root, and there is no user {' or '.join(USUAL_USERS)}: name another in {USER_VARIABLE}, "
        "or use a Postgres of your own (--store)"
    )


def _told(name: str) -> pwd.struct_passwd:
    try:
        found = pwd.getpwnam(name)
    except KeyError as error:
        raise StoreError(f"{USER_VARIABLE}: there is no user {name!r}") from error
    if found.pw_uid == 0:
        raise StoreError(f"{USER_VARIABLE}: Postgres does not run as root; name another user")
    return found


def _owner(data: Path) -> pwd.struct_passwd | None:
    try:
        uid = data.stat().st_uid
        return pwd.getpwuid(uid) if uid != 0 and (data / "PG_VERSION").exists() else None
    except (OSError, KeyError):
        return None


def closed_to(user: pwd.struct_passwd, path: Path) -> Path | None:
    """The first directory from the root down to `path` that `user` cannot pass through; None when there is no such."""
    groups = {user.pw_gid}
    for folder in reversed([path, *path.parents]):
        status = folder.stat()
        own, group = status.st_uid == user.pw_uid, status.st_gid in groups
        needed = stat.S_IXUSR if own else stat.S_IXGRP if group else stat.S_IXOTH
        if not status.st_mode & needed:
            return folder
    return None


def can_stand_in() -> bool:
    """Whether a process can name the directory in which it stands."""
    return Path(HERE).exists()


def reachable_programs(programs: Path, user: pwd.struct_passwd) -> Path:
    """`programs`, the directory of the wheel's Postgres programs, or a copy that `user` can reach."""
    if closed_to(user, programs) is None:
        return programs
    install = programs.parent
    package = install.parent
    stamp = f"{programs}:{(programs / 'postgres').stat().st_mtime_ns}"
    target = COPIES / f"millwheel-postgres-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    if not target.exists():
        _copy(package, install, target)
    status = target.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.geteuid()
        or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise StoreError(f"{target} is not ours; remove it")
    return target / package.name / install.name / programs.name


def _copy(package: Path, install: Path, target: Path) -> None:
    """Programs, their libraries and what they read, laid out as in the wheel; whole or not at all."""
    made = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        for part in ("bin", "lib", "share"):
            shutil.copytree(install / part, made / package.name / install.name / part, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, made / libraries.name, symlinks=True)
        for folder in (made, *(path for path in made.rglob("*") if path.is_dir() and not path.is_symlink())):
            folder.chmod(0o755)
        made.rename(target)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        if not target.exists():  # another process may have been first
            raise StoreError(f"cannot copy the programs of Postgres to {target}: {error}") from error
