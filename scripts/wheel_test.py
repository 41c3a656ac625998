"""Build the wheel, install it in an empty new venv and run tests/wheel_smoke.py there: ``make wheel-test``.

Then the same with the wheel that is compiled, if there is a C compiler.  Nothing of the clone is on the path of the smoke
test, which runs from a temporary folder: what passes is what a user gets. The dependencies have the lock's versions, so that
a release made elsewhere cannot break it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import compiled

ROOT = Path(__file__).resolve().parent.parent
PINNED = re.compile(r"^([A-Za-z0-9._-]+==[^\\\n]+?)\s*\\?$", re.MULTILINE)


def run(*command: str | Path, cwd: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    subprocess.run([str(part) for part in command], cwd=cwd, env=env, check=True)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="millwheel-wheel-") as name:
        place = Path(name)
        (place / "plain").mkdir()
        wheel = compiled.build(place / "plain", compiled=False)
        constraints = place / "constraints.txt"
        constraints.write_text("\n".join(PINNED.findall((ROOT / "requirements/dev.lock").read_text())) + "\n")
        venv.create(place / "venv", with_pip=True, symlinks=True)
        python = place / "venv" / "bin" / "python"
        pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet")
        run(*pip, "install", "--prefer-binary", "--constraint", constraints, wheel, cwd=place)
        run(*pip, "check", cwd=place)

        smoke = shutil.copy(ROOT / "tests" / "wheel_smoke.py", place)
        checked = (python, "-W", "error::DeprecationWarning:millwheel", smoke)
        run(*checked, "interpreted", cwd=place)
        if compiled.can_compile():
            (place / "compiled").mkdir()
            run(*pip, "install", "--no-deps", "--force-reinstall", compiled.build(place / "compiled"), cwd=place)
            run(*checked, "compiled", cwd=place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
