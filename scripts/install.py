"""Install what a lock file names into the environment of this Python: `python scripts/install.py requirements/dev.lock`.

pip unpacks one package after the other on one processor, which takes a minute and a half here.  So each of two runs gets
every other package.  The lock names all packages with their hashes, so no run needs to know of the other.  Needs nothing but
the standard library and pip.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

RUNS: Final = 2
PACKAGE: Final = re.compile(r"^(?=[A-Za-z0-9][\w.-]*==)", re.MULTILINE)
# Python compiles a module when it is first imported; of most packages here, that is a small part.
PIP: Final = (
    sys.executable,
    "-m",
    "pip",
    "install",
    "--quiet",
    "--quiet",
    "--disable-pip-version-check",
    "--no-compile",
)
LOCKED: Final = ("--require-hashes", "--no-deps", "--no-build-isolation", "--use-pep517")


def main(lock: Path) -> int:
    _, *packages = PACKAGE.split(lock.read_text())
    with tempfile.TemporaryDirectory() as place:
        runs = []
        for number in range(RUNS):
            part = Path(place, f"{number}.lock")
            part.write_text("".join(packages[number::RUNS]))
            runs.append(subprocess.Popen([*PIP, *LOCKED, "-r", str(part)]))
        return max(run.wait() != 0 for run in runs)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
