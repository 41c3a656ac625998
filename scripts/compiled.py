"""Build the wheel whose modules for hooks are compiled, and unpack it: `python scripts/compiled.py build/compiled`.

With that folder before the sources on its path, Python runs the compiled form.  Without a C compiler the folder is empty, and
Python runs what it finds behind it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
ASKED: Final = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1"}
"""What asks Hatchling for the compiled wheel."""


def can_compile() -> bool:
    """Whether there is a C compiler."""
    return shutil.which(os.environ.get("CC", "cc")) is not None


def build(place: Path, compiled: bool = True) -> Path:
    """Build a wheel into `place`, with what this environment has; the path of the wheel."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", *ASKED)}
    command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(ROOT))
    subprocess.run(command, cwd=place, env=env | (ASKED if compiled else {}), stdout=subprocess.DEVNULL, check=True)
    (wheel,) = place.glob("millwheel_streams-*.whl")
    return wheel


def main(folder: Path) -> int:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if not can_compile():
        print("no C compiler is found (CC, cc): what runs hooks is not compiled", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory(prefix="millwheel-wheel-") as place, zipfile.ZipFile(build(Path(place))) as wheel:
        wheel.extractall(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
