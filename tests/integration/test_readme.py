"""The README's word count, saved under the name it gives, run with the commands it gives, prints what it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import WAIT_S

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    """The README's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def sessions() -> list[tuple[str, str]]:
    """(command, output shown) of the console blocks that use `millwheel`."""
    found: list[tuple[str, str]] = []
    for block in blocks("console"):
        for line in block.splitlines(keepends=True):
            if line.startswith("$ "):
                found.append((line[2:].strip(), ""))
            else:
                command, shown = found[-1]
                found[-1] = command, shown + line
    return [(command, shown) for command, shown in found if command.startswith("millwheel ")]


@pytest.mark.postgres
def test_the_word_count_runs_as_shown(tmp_path: Path) -> None:
    code = next(block for block in blocks("python") if "ProcessRecord" in block)
    name = re.search(r"save this as `(\w+\.py)`", README.read_text(encoding="utf-8"))
    assert name is not None, "the README no longer says under which name to save its example"
    (tmp_path / name[1]).write_text(code, encoding="utf-8")
    commands = sessions()
    assert any(shown for _, shown in commands), "the README shows no output"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for _ in range(2):  # "Run it again: every word is still counted once"
        for command, shown in commands:
            done = subprocess.run(
                shlex.split(command), cwd=tmp_path, env={**os.environ, "PATH": path},
                capture_output=True, text=True, timeout=WAIT_S, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            if shown:
                assert done.stdout == shown, command
