"""Which files there are: what a path, a directory or a glob pattern lists, and by which paths they are told apart.

Lives here: looking into directories.  Never here: looking into files, or which of them is which partition (`identity`).
Invariant: no two files that are there at once have one path, also when a source has several directories.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from millwheel_injectors.identity import ROOT_END, Listed


def root_of(pattern: Path) -> Path:
    """The directory below which a pattern's paths are told: up to its first wildcard, or a file's own."""
    if pattern.is_dir():
        return pattern
    parts = pattern.parts
    fixed = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:fixed])


def prefixes(patterns: Sequence[Path]) -> list[str]:
    """What stands before the paths of each pattern's files: its root, if others have other ones.

    >>> prefixes([Path("logs/a/*.log"), Path("logs/b/*.log")]), prefixes([Path("logs/*.log")])
    (['a//', 'b//'], [''])
    """
    roots = [root_of(pattern).absolute() for pattern in patterns]
    if len({*roots}) == 1:
        return [""] * len(roots)
    common = os.path.commonpath(roots)
    return [root.relative_to(common).as_posix() + ROOT_END for root in roots]


def list_files(pattern: Path, prefix: str) -> Iterator[Listed]:
    """The files of one pattern, hidden ones left out, in any order, one after the other: there may be very many."""
    if pattern.is_dir():
        yield from _scan(pattern, None, prefix)
    elif pattern.exists() or not glob.has_magic(str(pattern)):
        yield from _listed([pattern], root_of(pattern), prefix)
    elif root_of(pattern) == pattern.parent and pattern.name != "**":
        yield from _scan(pattern.parent, re.compile(fnmatch.translate(pattern.name)), prefix)
    else:
        yield from _listed(map(Path, glob.iglob(str(pattern), recursive=True)), root_of(pattern), prefix)


def _scan(directory: Path, names: re.Pattern[str] | None, prefix: str) -> Iterator[Listed]:
    try:
        entries = os.scandir(directory)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if entry.name.startswith(".") or (names is not None and names.match(entry.name) is None):
                continue
            with suppress(FileNotFoundError):
                # A link that leads in a circle is no file to `Path`, and an error to `os.DirEntry`.
                if Path(entry.path).is_file() if entry.is_symlink() else entry.is_file():
                    status = entry.stat()
                    yield Listed(entry.path, prefix + entry.name, status.st_ino, status.st_size, status.st_mtime_ns)


def _listed(places: Iterable[Path], root: Path, prefix: str) -> Iterator[Listed]:
    for place in places:
        with suppress(FileNotFoundError):
            if place.is_file() and not place.name.startswith("."):
                status, path = place.stat(), prefix + place.relative_to(root).as_posix()
                yield Listed(str(place), path, status.st_ino, status.st_size, status.st_mtime_ns)
