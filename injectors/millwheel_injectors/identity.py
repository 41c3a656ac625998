"""Which file is which partition, through growth, rename, rotation and compression (§5.2).

Lives here: fingerprints and the catalog that matches them with the files on disk.  Never here: rows.
Invariants: one name means one file for ever; a file whose read beginning changed is refused, never read as if
it were the same or a new one.  The catalog remembers what is not finished; of the rest the store is asked, by signs.

A partition's name is the hash of the file's first line (with a header, its first two), another hash behind it when several
files begin alike.  The name is only a label.  A file is recognised by its *fingerprint*, which is stored with the position.
The fingerprint is the hash of the file's first bytes: as many as were there, at most 4 kB, uncompressed.  For files that
begin alike, it also has inode and path, or the hash of the last bytes that were read.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec

from millwheel.errors import SourceError
from millwheel.limits import FILE_HEAD_LIMIT_BYTES
from millwheel.search import sign
from millwheel_injectors.streams import GzipStream, head_of, open_stream, read_head, stream_of

ROOT_END = "//"
"""In the path of a file, behind the name of its root, if the source has several roots."""


def below_its_root(path: str) -> str:
    """A file's path without the name of its root."""
    return path.rpartition(ROOT_END)[2]


class Identity(msgspec.Struct):
    """What is remembered of a file; the part of a partition's state that says which file it is."""

    path: str
    """Relative to the source's root.  If there are several, the root's name is before it, but not in what was stored by a
    version that did not tell them apart."""
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
    size: int = -1
    """Bytes on disk when all of them were consumed; -1 when there were more."""
    mtime_ns: int = 0
    """When it had been written last then."""

    def fits(self, head: bytes) -> bool:
        """True when a file that begins with `head` can be this one, grown."""
        return len(head) >= self.head and digest_of(head[: self.head]) == self.digest


class Listed(msgspec.Struct, frozen=True):
    """A file that a directory lists; `path` is relative to the source's root, `place` can be opened."""

    place: str
    path: str
    inode: int
    size: int
    mtime_ns: int

    def sign(self) -> bytes:
        """What a finished file has as well when nobody has touched it since."""
        return look_sign(self.path, self.inode, self.size, self.mtime_ns)


class FoundFile(msgspec.Struct, frozen=True):
    """A file as it is on disk now, and how it begins."""

    place: Path
    path: str
    inode: int
    size: int
    mtime_ns: int
    head: bytes
    gzip: bool

    def signs(self) -> list[bytes]:
        """What it may share with a finished file that is this one."""
        signs = _signs(self.path, self.inode, len(self.head), digest_of(self.head))
        return [*signs, sign("path", below_its_root(self.path))] if ROOT_END in self.path else signs

    def look(self) -> bytes:
        """See `Listed.sign`."""
        return look_sign(self.path, self.inode, self.size, self.mtime_ns)

    def identity(self) -> Identity:
        """What to remember of it when it is first met."""
        return Identity(self.path, self.inode, len(self.head), digest_of(self.head))


def signs_of(identity: Identity) -> list[bytes]:
    """By which a finished file is known again: untouched, by path, by inode, by a long beginning."""
    signs = _signs(identity.path, identity.inode, identity.head, identity.digest)
    if identity.size >= 0:
        signs.append(look_sign(identity.path, identity.inode, identity.size, identity.mtime_ns))
    return signs


def _signs(path: str, inode: int, head: int, digest: str) -> list[bytes]:
    long = [sign("head", digest)] if head == FILE_HEAD_LIMIT_BYTES else []
    return [sign("path", path), sign("inode", inode), *long]


def look_sign(path: str, inode: int, size: int, mtime_ns: int) -> bytes:
    """A file at one place that nobody has touched."""
    return sign("look", path, inode, size, mtime_ns)


def digest_of(data: bytes) -> str:
    """A hash that also covers the length."""
    return hashlib.sha256(len(data).to_bytes(4, "big") + data).hexdigest()[:24]


def first_lines(head: bytes, lines: int, final: bool) -> bytes | None:
    """The first `lines` lines of a file, without the last newline; None when they are not there yet."""
    end = -1
    for _ in range(lines):
        end = head.find(b"\n", end + 1)
        if end < 0:
            return head if final or len(head) >= FILE_HEAD_LIMIT_BYTES else None
    return head[:end]


def inspect_file(place: Path, path: str) -> FoundFile:
    """Look at a file; `FileNotFoundError` when it is gone.

    It is opened once: between two looks at a path, rotation may put another file there.
    """
    with open(place, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        stream = stream_of(place, file)
        gzip = isinstance(stream, GzipStream)
        return FoundFile(place, path, status.st_ino, status.st_size, status.st_mtime_ns, head_of(stream), gzip)


def each_once(files: Sequence[FoundFile]) -> list[FoundFile]:
    """Without the places that a file has left since they were listed: a directory that renames meanwhile lists it twice."""
    inodes = Counter(file.inode for file in files)
    return [file for file in files if inodes[file.inode] == 1 or _is_there(file)]


def _is_there(file: FoundFile) -> bool:
    try:
        return file.place.stat().st_ino == file.inode
    except FileNotFoundError:
        return False


class Catalog:
    """Names of files.  `head_lines` lines make a name; `final` says that files are complete as they are."""

    def __init__(self, head_lines: int, final: bool) -> None:
        self._head_lines = head_lines
        self._final = final
        self._known: dict[str, Identity] = {}
        self._looks: dict[Path, tuple[Listed, FoundFile]] = {}

    def remember(self, name: str, identity: Identity) -> None:
        """Note a partition that is in the store and not finished."""
        self._known.setdefault(name, identity)

    def forget(self, name: str) -> None:
        """A partition is finished, and the store says so."""
        self._known.pop(name, None)

    def identity(self, name: str) -> Identity:
        """What is remembered of `name`; the partition keeps it up to date."""
        return self._known[name]

    def path(self, name: str) -> str:
        """The path of `name` when it was seen last; empty for one that is not remembered."""
        return self._known[name].path if name in self._known else ""

    def strangers(self, files: Iterable[FoundFile]) -> list[FoundFile]:
        """All but those that can only be remembered ones: at the old place, the same inode, the same beginning."""
        places: dict[tuple[int, str], list[Identity]] = {}
        for identity in self._known.values():
            places.setdefault((identity.inode, identity.path), []).append(identity)
        return [f for f in files if not any(known.fits(f.head) for known in places.get((f.inode, f.path), ()))]

    def names(self) -> set[str]:
        """Those that are remembered."""
        return {*self._known}

    def look(self, listed: Listed) -> FoundFile | None:
        """How a file begins, read again only when it changed; None when it is gone."""
        place = Path(listed.place)  # one spelling: a relative pattern lists "./a.log"
        seen = self._looks.get(place)
        if seen is None or seen[0] != listed:
            try:
                seen = self._looks[place] = (listed, inspect_file(place, listed.path))
            except FileNotFoundError:
                return None
        return seen[1]

    def keep(self, files: Iterable[FoundFile]) -> None:
        """Of no other file need be known how it begins."""
        self._looks = {file.place: self._looks[file.place] for file in files}

    def match(
        self,
        files: Sequence[FoundFile],
        finished: Mapping[str, Identity],
        held: Callable[[str], bool],
        there: Callable[[Identity], bool],
    ) -> tuple[dict[str, FoundFile], list[FoundFile]]:
        """The file of every name that has one, of those in `finished` too; and files that no name fits.

        `held(name)` says that the partition has its file open, so that it may be gone from the disk, and `there(identity)`
        that a file with this inode and beginning is listed.
        """
        known = {**finished, **self._known}
        files = [*self._seen_again(files)]
        found = self._pair(files, known, there)
        paired = {file.place for file in found.values()}
        new = [file for file in files if file.place not in paired]
        self._refuse_rewritten(found, new, held)
        return found, new

    def _seen_again(self, files: Sequence[FoundFile]) -> Iterator[FoundFile]:
        """Look again at files of which more was read, since somebody has looked at them, than was there then."""
        longest: dict[int | str, int] = {}  # several may have had one inode, or one path, one after the other
        for identity in self._known.values():
            for place in (identity.inode, identity.path):
                longest[place] = max(identity.head, longest.get(place, 0))
        for file in files:
            if len(file.head) >= max(longest.get(file.inode, 0), longest.get(file.path, 0)):
                yield file
                continue
            with suppress(FileNotFoundError):  # else it was renamed or removed since, which the next search sees
                yield inspect_file(file.place, file.path)

    def base(self, file: FoundFile) -> str | None:
        """The name of a file that begins as no other does; None while nobody can tell how it begins."""
        line = first_lines(file.head, self._head_lines, self._final) if file.head else None
        return None if line is None else digest_of(line)

    def _pair(
        self, files: Sequence[FoundFile], known: Mapping[str, Identity], there: Callable[[Identity], bool]
    ) -> dict[str, FoundFile]:
        """Files that have a name, the surest pairs first."""
        index: dict[tuple[int, str], list[str]] = {}
        for name, identity in known.items():
            index.setdefault((identity.head, identity.digest), []).append(name)
        pairs = [
            (surety, -order, name, file)
            for order, file in enumerate(files)
            for name in names_by_head(index, file.head)
            if (surety := likeness(known[name], file)) is not None and not _has_other_name(known[name], file, there)
        ]
        found: dict[str, FoundFile] = {}
        used: set[Path] = set()
        for _, _, name, file in sorted(pairs, key=lambda pair: pair[:3], reverse=True):
            if name not in found and file.place not in used:
                found[name] = file
                used.add(file.place)
                self._meet_again(known[name], file)
        return found

    def _meet_again(self, identity: Identity, file: FoundFile) -> None:
        if identity.finished and not file.gzip and file.size > identity.offset:
            raise SourceError(
                f"{file.place}: grew from {identity.offset} to {file.size} bytes after its end was read; "
                "put new rows into a new file, or read it with tail=True and a longer quiet_us"
            )
        if identity.finished and not tail_fits(file.place, identity):
            raise SourceError(rewritten_message(file.place, identity))
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


def names_for(file: FoundFile, base: str) -> Iterator[str]:
    """Names to give to a file, the first of which that nobody has is its own: the same in every process."""
    yield base
    other = f"{base}~{sign('file', file.inode, file.path).hex()[:8]}"
    yield other
    for number in count(2):
        yield f"{other}~{number}"


def names_by_head(index: dict[tuple[int, str], list[str]], head: bytes) -> Iterator[str]:
    """Names of `index` (by head length and digest) whose files begin as `head` does."""
    for length in {length for length, _ in index}:
        if length <= len(head):
            yield from index.get((length, digest_of(head[:length])), ())


def likeness(identity: Identity, file: FoundFile) -> tuple[int, int] | None:
    """How sure it is that `file`, whose beginning fits, is the remembered one; None when it is not.

    Without the same inode or path (a copy, a compressed log), the bytes before the position must be the same too.  So they
    must without the same inode if it is finished: then it may be gone, and another file in its place.
    """
    near = 2 * (identity.inode == file.inode) + (identity.path in (file.path, below_its_root(file.path)))
    if not near and identity.finished and identity.offset < FILE_HEAD_LIMIT_BYTES:
        return None
    if (not near or (identity.finished and near == 1)) and not tail_fits(file.place, identity):
        return None
    return near, identity.head


def _has_other_name(identity: Identity, file: FoundFile, there: Callable[[Identity], bool]) -> bool:
    """Whether a finished file was renamed, and `file` has come into its place."""
    same_path = identity.path in (file.path, below_its_root(file.path))
    return same_path and identity.finished and identity.inode != file.inode and there(identity)


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


def is_longer(place: Path, identity: Identity, unread: int) -> bool:
    """True for a copy of a remembered file that has more than `unread` bytes behind the remembered position."""
    try:
        if not identity.fits(read_head(place)) or not tail_fits(place, identity):
            return False
        stream = open_stream(place)
        try:
            stream.seek(identity.offset)
            left = unread
            while left >= 0 and (chunk := stream.read()):
                left -= len(chunk)
            return left < 0
        finally:
            stream.close()
    except (FileNotFoundError, SourceError):
        return False


def is_twin(file: FoundFile) -> bool:
    """True for "x.gz" where "x" stands beside it and begins alike: rotation is compressing it just now."""
    if not file.gzip or file.place.suffix != ".gz":
        return False
    try:
        return read_head(file.place.with_suffix("")).startswith(file.head)
    except (FileNotFoundError, IsADirectoryError):
        return False


def rewritten_message(place: Path, identity: Identity) -> str:
    """What to tell about a file whose beginning changed."""
    return (
        f"{place}: rewritten: its first {identity.head} bytes or those before byte {identity.offset} are not "
        f"what was read before (as {identity.path}); restore the file, or give the new data a new file name"
    )
