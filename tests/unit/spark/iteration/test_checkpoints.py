"""Checkpoints on disk: complete or not there, ours or refused, the old one gone only after the new one is whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from millwheel.spark.iteration import Blocking, CheckpointError, Head, Optimistic, Part, Tail
from millwheel.spark.iteration.checkpoints import MANIFEST, commit, folder_of, newest, read_parts, remove, write_parts

JOB = {"name": "test", "partitions": 2, "initial state": "00aa"}


def a_part(number: int) -> Part:
    return Part(number, np.array([number, number + 10]), {"rank": np.array([0.5, np.inf]), "at": np.ones((2, 3))})


def write(path: Path, superstep: int) -> None:
    folder = folder_of(str(path), superstep)
    commit(str(path), superstep, JOB, [write_parts(folder, number, {"part": a_part(number)}) for number in (1, 0)])


def test_what_was_written_is_read(tmp_path: Path) -> None:
    work = Part(1, np.array([11]), {"rank": np.array([2.0])})
    file = write_parts(str(tmp_path), 1, {"part": a_part(1), "work": work})
    found = read_parts(str(tmp_path), file)
    assert sorted(found) == ["part", "work"]
    assert found["part"].number == 1
    assert found["part"].keys.tolist() == [1, 11]
    assert found["part"]["rank"].tolist() == [0.5, np.inf]
    assert found["part"]["at"].shape == (2, 3)
    assert found["work"]["rank"].tolist() == [2.0]


def test_the_newest_complete_one_counts_and_older_ones_go(tmp_path: Path) -> None:
    for superstep in (1, 2, 10):
        write(tmp_path, superstep)
    assert sorted(os.listdir(tmp_path)) == ["step-00000010"]
    found = newest(str(tmp_path), JOB)
    assert found is not None
    assert (found.superstep, [file.number for file in found.files]) == (10, [0, 1])
    remove(str(tmp_path))
    assert newest(str(tmp_path), JOB) is None
    assert not tmp_path.exists()


def test_of_two_whole_ones_the_newer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # the driver ended before it could remove the older ones
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        for superstep in (1, 2, 10):
            write(tmp_path, superstep)
    found = newest(str(tmp_path), JOB)
    assert found is not None
    assert found.superstep == 10


def test_what_is_not_named_as_a_checkpoint_is_somebody_s_own(tmp_path: Path) -> None:
    own = ["step-1", "step-2026-input", "step-00000003.bak", "steps"]
    for name in own:
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.csv").write_text("mine")
    write(tmp_path, 3)
    write(tmp_path, 4)
    assert sorted(os.listdir(tmp_path)) == sorted([*own, "step-00000004"])
    remove(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(own)


def test_parts_without_a_manifest_are_no_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 3)
    write_parts(folder_of(str(tmp_path), 4), 0, {"part": a_part(0)})
    found = newest(str(tmp_path), JOB)
    assert found is not None
    assert found.superstep == 3
    write(tmp_path, 5)
    assert sorted(os.listdir(tmp_path)) == ["step-00000005"]


@pytest.mark.parametrize("damage", ["truncated manifest", "missing part", "short part", "manifest of other text"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, damage: str) -> None:
    write(tmp_path, 3)
    folder = Path(folder_of(str(tmp_path), 3))
    part = next(folder.glob("part-*"))
    if damage == "truncated manifest":
        (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:40])
    elif damage == "missing part":
        part.unlink()
    elif damage == "short part":
        part.write_bytes(part.read_bytes()[:-1])
    else:
        (folder / MANIFEST).write_text("[]")
    assert newest(str(tmp_path), JOB) is None


def test_a_part_whose_bytes_changed_is_refused(tmp_path: Path) -> None:
    file = write_parts(str(tmp_path), 1, {"part": a_part(1)})
    data = bytearray((tmp_path / file.name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / file.name).write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=file.name):
        read_parts(str(tmp_path), file)


def test_another_job_s_checkpoint_is_refused_with_the_difference(tmp_path: Path) -> None:
    write(tmp_path, 3)
    with pytest.raises(CheckpointError, match=r"partitions 2 there, 4 here.*another path"):
        newest(str(tmp_path), JOB | {"partitions": 4})
    with pytest.raises(CheckpointError, match=r"initial state '00aa' there, None here"):
        newest(str(tmp_path), {name: value for name, value in JOB.items() if name != "initial state"})


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 3)
    manifest = Path(folder_of(str(tmp_path), 3)) / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    with pytest.raises(CheckpointError, match="format 2"):
        newest(str(tmp_path), JOB)


def test_attempts_of_one_partition_do_not_overwrite_each_other(tmp_path: Path) -> None:
    one = write_parts(str(tmp_path), 1, {"part": a_part(1)})
    other = write_parts(str(tmp_path), 1, {"part": Part(1, np.array([5]), {"rank": np.array([1.0])})})
    assert one.name != other.name
    assert read_parts(str(tmp_path), one)["part"].keys.tolist() == [1, 11]
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_files_that_the_driver_does_not_see_are_no_checkpoint(tmp_path: Path) -> None:
    """As when executors have disks of their own."""
    elsewhere = write_parts(str(tmp_path / "elsewhere"), 0, {"part": a_part(0)})
    with pytest.raises(CheckpointError, match=r"the driver does not see it.*one directory for all"):
        commit(str(tmp_path / "here"), 1, JOB, [elsewhere])
    assert newest(str(tmp_path / "here"), JOB) is None


@pytest.mark.parametrize("policy", [Blocking, Tail, Head])
def test_a_relative_path_is_the_driver_s_and_a_url_is_none(
    policy: type[Blocking], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert policy("checkpoints").path == str(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="not a URL"):
        policy("hdfs://name/checkpoints")
    with pytest.raises(ValueError, match="every must be"):
        policy("x", every=0)


def test_a_compensation_is_a_function() -> None:
    with pytest.raises(ValueError, match="compensate must be a function"):
        Optimistic("mean")  # type: ignore[arg-type]
