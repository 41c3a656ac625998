"""Checkpoint files: one file a partition, written aside and renamed, and a manifest that is written last.

Lives here: the layout on disk, and reading it back. Never here: when to write. The invariant: a superstep's directory
with a manifest is complete and every file in it is what the manifest says; a directory without one does not exist for
a reader. An older checkpoint is removed only after a newer manifest is on disk.

    PATH/step-00000012/part-00003-5f0c….npz     arrays only (numpy's format, no objects)
    PATH/step-00000012/manifest.json            job, superstep, for each file its name, size and CRC-32

PATH must be one place for the driver and all executors: a local disk for local modes, else a shared file system. A
checkpoint of which the driver does not see every file is refused.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from millwheel.spark.iteration.columns import Part
from millwheel.spark.iteration.errors import CheckpointError

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
_PREFIX: Final = "step-"
_NAME: Final = re.compile(_PREFIX + r"\d{8,}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartFile:
    """One partition's file in a checkpoint."""

    number: int
    name: str
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class SuperstepCheckpoint:
    """A complete checkpoint: the state after `superstep`, of the job that `job` describes."""

    superstep: int
    folder: str
    job: Mapping[str, Any]
    files: tuple[PartFile, ...]


def folder_of(path: str, superstep: int) -> str:
    """Where the checkpoint of a superstep lies."""
    return str(Path(path) / f"{_PREFIX}{superstep:08d}")


def write_parts(folder: str, number: int, parts: Mapping[str, Part]) -> PartFile:
    """Write one partition (its solution, and its workset if it has one); durable when this returns.

    Every attempt of a task writes a file of its own: the manifest names the one whose content was kept.
    """
    arrays = {}
    for role, part in parts.items():
        arrays[f"{role}/keys"] = part.keys
        arrays |= {f"{role}/column/{name}": column for name, column in part.columns.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    data = buffer.getbuffer()
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    name = f"part-{number:05d}-{uuid.uuid4().hex}.npz"
    _write(place / name, data)
    return PartFile(number, name, len(data), zlib.crc32(data))


def read_parts(folder: str, file: PartFile) -> dict[str, Part]:
    """One partition back; CheckpointError when the file is not what the manifest says."""
    place = Path(folder) / file.name
    try:
        data = place.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{place} cannot be read: {error}") from error
    if len(data) != file.size_bytes or zlib.crc32(data) != file.crc:
        raise CheckpointError(
            f"{place} is damaged: its {len(data)} bytes are not the {file.size_bytes} that were written; restore the file, "
            "or remove the checkpoint"
        )
    keys: dict[str, Any] = {}
    columns: dict[str, dict[str, Any]] = {}
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        for label in arrays.files:
            role, kind, *name = label.split("/", 2)
            if kind == "keys":
                keys[role] = arrays[label]
            else:
                columns.setdefault(role, {})[name[0]] = arrays[label]
    return {role: Part(file.number, keys[role], columns.get(role, {})) for role in keys}


def commit(path: str, superstep: int, job: Mapping[str, Any], files: Sequence[PartFile]) -> SuperstepCheckpoint:
    """Write the manifest, which makes the checkpoint exist, then remove every older one and all that has no manifest.

    CheckpointError when a file is not here: the executors write to another place.
    """
    folder = Path(folder_of(path, superstep))
    unseen = next((file.name for file in files if not _is_whole(folder, file)), None)
    if unseen is not None:
        raise CheckpointError(
            f"{folder / unseen} was written by an executor, and the driver does not see it: checkpoints protect nothing "
            "unless their path is one directory for all, on a file system that driver and executors share"
        )
    done = SuperstepCheckpoint(superstep, str(folder), job, tuple(sorted(files, key=lambda file: file.number)))
    text = json.dumps(
        {"format": FORMAT, "superstep": superstep, "job": job, "files": [asdict(file) for file in done.files]}, indent=1
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / MANIFEST, text.encode())
    _sync_directory(folder)
    _sync_directory(folder.parent)
    for other in _folders(path):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return done


def newest(path: str, job: Mapping[str, Any]) -> SuperstepCheckpoint | None:
    """The newest complete checkpoint; CheckpointError when another job wrote it. Incomplete ones are passed over."""
    for folder in sorted(_folders(path), reverse=True):
        found = _read_manifest(folder)
        if found is None:
            continue
        differs = [name for name in sorted({*job, *found.job}) if job.get(name) != found.job.get(name)]
        if differs:
            what = ", ".join(f"{name} {found.job.get(name)!r} there, {job.get(name)!r} here" for name in differs)
            raise CheckpointError(
                f"{folder} was written by another job ({what}): give this one another path, or remove {path}"
            )
        return found
    return None


def remove(path: str) -> None:
    """All checkpoints under a path, and the path if nothing else is in it."""
    for folder in _folders(path):
        shutil.rmtree(folder, ignore_errors=True)
    if Path(path).is_dir() and not any(Path(path).iterdir()):
        Path(path).rmdir()


def _read_manifest(folder: Path) -> SuperstepCheckpoint | None:
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
        files = tuple(PartFile(**file) for file in found["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if found.get("format") != FORMAT:
        raise CheckpointError(f"{folder} has format {found.get('format')!r}, and this version reads {FORMAT}")
    whole = all(_is_whole(folder, file) for file in files)
    return SuperstepCheckpoint(found["superstep"], str(folder), found["job"], files) if whole else None


def _is_whole(folder: Path, file: PartFile) -> bool:
    place = folder / file.name
    return place.is_file() and place.stat().st_size == file.size_bytes


def _folders(path: str) -> list[Path]:
    """Only what `folder_of` names: whatever else lies there is somebody's own, and is neither read nor removed."""
    return [found for found in Path(path).glob(f"{_PREFIX}*") if _NAME.fullmatch(found.name) and found.is_dir()]


def _write(target: Path, data: bytes | memoryview) -> None:
    """Durable under its name, or not there under it at all."""
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    with aside.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    aside.replace(target)


def _sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
