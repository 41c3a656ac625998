"""Which file is which partition, through growth, rename, rotation and compression (§5.2).

Lives here: fingerprints and the catalog that matches them with the files on disk.  Never here: rows.
Invariants: one name means one file for ever; a file whose read beginning changed is refused, never read as if
it were the same or a new one.

A partition's name is the hash of the file's first line (with a header, its first two), a number behind it
when several files begin alike.  The name is only a label: a file is recognised by its *fingerprint*, which is
stored with the position: the hash of its first bytes (as many as were there, at most 4 kB, uncompressed), and
for files that begin alike also inode and path, or the hash of the last bytes read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from millwheel.errors import SourceError
from millwheel_injectors.streams import GZIP_MAGIC, HEAD_LIMIT_BYTES, open_stream, read_head


class Identity(msgspec.Struct):
    """What is remembered of a file; the part of a partition's state that says which file it is."""

    path: str
    """Relative to the source's root."""
    inode: int
    head: int
    """Bytes that `digest` covers."""
    digest: str
    offset: int = 0
    """Uncompressed bytes consumed."""
    tail: int = 0
    """Bytes before `offset` that `tail_digest` covers."""
    tail_digest: str = ""
    finished: bool = False

    def fits(self, head: bytes) -> bool:
        """True when a file that begins with `head` can be this one, grown."""
        return len(head) >= self.head and digest_of(head[: self.head]) == self.digest


class FoundFile(msgspec.Struct, frozen=True):
    """A file as it is on disk now; `path` is relative to the source's root, `place` can be opened."""

    place: Path
    path: str
    inode: int
    size: int
    head: bytes
    gzip: bool

    def identity(self) -> Identity:
        """What to remember of it when it is first met."""
        return Identity(self.path, self.inode, len(self.head), digest_of(self.head))


def digest_of(data: bytes) -> str:
    """A hash that also covers the length."""
    return hashlib.sha256(len(data).to_bytes(4, "big") + data).hexdigest()[:24]


def first_lines(head: bytes, lines: int, final: bool) -> bytes | None:
    """The first `lines` lines of a file, without the last newline; None when they are not there yet."""
    end = -1
    for _ in range(lines):
        end = head.find(b"\n", end + 1)
        if end < 0:
            return head if final or len(head) >= HEAD_LIMIT_BYTES else None
    return head[:end]


def inspect_file(place: Path, path: str) -> FoundFile:
    """Look at a file; `FileNotFoundError` when it is gone."""
    with open(place, "rb") as file:
        gzip = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        status = os.fstat(file.fileno())
    return FoundFile(place, path, status.st_ino, status.st_size, read_head(place), gzip)


class Catalog:
    """Names of files.  `head_lines` lines make a name; `final` says that files are complete as they are."""

    def __init__(self, head_lines: int, final: bool) -> None:
        self._head_lines = head_lines
        self._final = final
        self._known: dict[str, Identity] = {}
        self._looks: dict[Path, tuple[tuple[int, int, int], FoundFile]] = {}

    def remember(self, name: str, identity: Identity) -> None:
        """Note a partition that is in the store."""
        self._known.setdefault(name, identity)

    def identity(self, name: str) -> Identity:
        """What is remembered of `name`; the partition keeps it up to date."""
        return self._known[name]

    def match(self, places: Iterable[tuple[Path, str]], held: Callable[[str], bool]) -> dict[str, FoundFile]:
        """The file of every name, new names included; files that cannot be told apart yet are left out.

        `held(name)` says that the partition has its file open, so that it may be gone from the disk.
        """
        files = [file for place in places if (file := self._look(*place)) is not None]
        self._looks = {file.place: self._looks[file.place] for file in files}
        files = files if self._final else without_twins(files)
        found = self._pair(files)
        paired = {file.place for file in found.values()}
        new = [file for file in files if file.place not in paired]
        self._refuse_rewritten(found, new, held)
        for file in new:
            if (name := self._new_name(file)) is not None:
                self._known[name] = file.identity()
                found[name] = file
        return found

    def _look(self, place: Path, path: str) -> FoundFile | None:
        """The file at `place`, read again only when it changed; None when it is gone."""
        try:
            status = os.stat(place)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            seen = self._looks.get(place)
            if seen is None or seen[0] != stamp:
                seen = self._looks[place] = (stamp, inspect_file(place, path))
        except FileNotFoundError:
            return None
        return seen[1]

    def _pair(self, files: Sequence[FoundFile]) -> dict[str, FoundFile]:
        """Files that are remembered, the surest pairs first."""
        index: dict[tuple[int, str], list[str]] = {}
        for name, identity in self._known.items():
            index.setdefault((identity.head, identity.digest), []).append(name)
        pairs = [
            (surety, -order, name, file)
            for order, file in enumerate(files)
            for name in names_by_head(index, file.head)
            if (surety := likeness(self._known[name], file)) is not None
        ]
        found: dict[str, FoundFile] = {}
        used: set[Path] = set()
        for _, _, name, file in sorted(pairs, key=lambda pair: pair[:3], reverse=True):
            if name not in found and file.place not in used:
                found[name] = file
                used.add(file.place)
                self._meet_again(self._known[name], file)
        return found

    def _meet_again(self, identity: Identity, file: FoundFile) -> None:
        if identity.finished and not file.gzip and file.size > identity.offset:
            raise SourceError(
                f"{file.place}: grew from {identity.offset} to {file.size} bytes after its end was read; "
                "put new rows into a new file, or read it with tail=True and a longer quiet_us"
            )
        identity.path, identity.inode = file.path, file.inode

    def _refuse_rewritten(
        self, found: dict[str, FoundFile], new: Sequence[FoundFile], held: Callable[[str], bool]
    ) -> None:
        """A file that stands where an unfinished one stood, but begins otherwise, took its place."""
        by_inode = {file.inode: file for file in new}
        by_path = {file.path: file for file in new}
        for name, identity in self._known.items():
            if name in found or identity.finished:
                continue
            file = by_inode.get(identity.inode) or (None if held(name) else by_path.get(identity.path))
            if file is not None:
                raise SourceError(rewritten_message(file.place, identity))

    def _new_name(self, file: FoundFile) -> str | None:
        line = first_lines(file.head, self._head_lines, self._final) if file.head else None
        if line is None:
            return None
        base = digest_of(line)
        number, name = 1, base
        while name in self._known:
            number += 1
            name = f"{base}~{number}"
        return name


def names_by_head(index: dict[tuple[int, str], list[str]], head: bytes) -> Iterator[str]:
    """Names of `index` (by head length and digest) whose files begin as `head` does."""
    for length in {length for length, _ in index}:
        if length <= len(head):
            yield from index.get((length, digest_of(head[:length])), ())


def likeness(identity: Identity, file: FoundFile) -> tuple[int, int] | None:
    """How sure it is that `file`, whose beginning fits, is the remembered one; None when it is not.

    Without the same inode or path (a copy, a compressed log), the bytes before the position must be the same
    too.
    """
    near = 2 * (identity.inode == file.inode) + (identity.path == file.path)
    if not near and identity.finished and identity.offset < HEAD_LIMIT_BYTES:
        return None
    if not near and not tail_fits(file.place, identity):
        return None
    return near, identity.head


def tail_fits(place: Path, identity: Identity) -> bool:
    """True when the bytes before the remembered position are still those that were read."""
    if not identity.tail:
        return True
    stream = open_stream(place)
    try:
        start = identity.offset - identity.tail
        stream.seek(start)
        data = b""
        while len(data) < identity.tail and (chunk := stream.read()):
            data += chunk
        return digest_of(data[: identity.tail]) == identity.tail_digest
    except SourceError:
        return False
    finally:
        stream.close()


def without_twins(files: list[FoundFile]) -> list[FoundFile]:
    """`files` without "x.gz" where "x" stands beside it and begins alike: rotation is compressing it just
    now."""
    plain = {file.place: file for file in files if not file.gzip}

    def is_twin(file: FoundFile) -> bool:
        twin = plain.get(file.place.with_suffix("")) if file.gzip and file.place.suffix == ".gz" else None
        return twin is not None and twin.head.startswith(file.head)

    return [file for file in files if not is_twin(file)]


def rewritten_message(place: Path, identity: Identity) -> str:
    """What to tell about a file whose beginning changed."""
    return (
        f"{place}: rewritten: its first {identity.head} bytes or those before byte {identity.offset} are not "
        f"what was read before (as {identity.path}); restore the file, or give the new data a new file name"
    )
