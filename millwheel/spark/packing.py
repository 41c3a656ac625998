"""The code that travels with a pipeline: its module, or the package that holds it, as one file that Spark sends on.

Lives here: what is sent, and under which name.  Never here: the sending.  Invariant: the file's name says what is in it, so
that changed code is another file, and executors never take an earlier one for it.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import shutil
import tempfile
import zipfile
from pathlib import Path


def packed(module: str, here: Path) -> list[Path]:
    """A zip with the pipeline's top-level module or package, if it lies in `here`; what is installed is not sent.

    >>> packed("json", Path("/srv/pipelines"))
    []
    """
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None or not Path(spec.origin).resolve().is_relative_to(here.resolve()):
        return []
    origin = Path(spec.origin).resolve()
    if "site-packages" in origin.parts:
        return []
    if spec.submodule_search_locations:
        root = origin.parent
        files = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    else:
        root, files = origin, [origin]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(root.parent)}\n".encode() + file.read_bytes())
    target = _directory() / f"{top}_{digest.hexdigest()[:16]}.zip"
    if target.exists():
        return [target]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, file.relative_to(root.parent))
    return [target]


@functools.cache
def _directory() -> Path:
    """One for this process, and gone with it: Spark sends files on as long as the application lives, from the same place."""
    made = tempfile.mkdtemp(prefix="millwheel-code-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
