"""Compiles what runs hooks when a wheel is built, if that is asked for: `HATCH_BUILD_HOOK_ENABLE_CUSTOM=1` (ADR 0058).

Hatchling calls it.  The modules of `COMPILED` go into the wheel as they are, and beside them as mypyc has compiled them;
Python imports the latter.  Nothing is written to the source tree.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED: Final = (
    "millwheel/api/bound.py",
    "millwheel/api/frame.py",
    "millwheel/api/producer.py",
    "millwheel/runtime/executor.py",
)
"""One call for each record, or more."""

SETUP: Final = """
import sys

from mypyc.build import mypycify
from setuptools import setup

place, *modules = sys.argv[1:]
setup(
    name="millwheel",
    packages=[],
    ext_modules=mypycify(
        ["--ignore-missing-imports", *modules], group_name="millwheel", target_dir=f"{place}/c", debug_level="0"
    ),
    script_args=["build_ext", "--build-lib", f"{place}/lib", "--build-temp", f"{place}/temp"],
)
"""


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the wheel only points to the sources."""
        if version == "editable":
            return
        self._place = tempfile.TemporaryDirectory(prefix="millwheel-compiled-")
        command = [sys.executable, "-c", SETUP, self._place.name, *COMPILED]
        made = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if made.returncode:
            raise SystemExit(
                f"compiling has failed; without HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 nothing is:\n{made.stdout}{made.stderr}"
            )
        library = Path(self._place.name) / "lib"
        build_data["force_include"] |= {
            str(path): str(path.relative_to(library)) for path in library.rglob("*.*") if path.is_file()
        }
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is there."""
        if version != "editable":
            self._place.cleanup()
