"""What runs hooks does the same when it is compiled (ADR 0058): the same traces of simulations, the same tests.

The wheel is built and unpacked as `make compiled` does it, and other processes import what is in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millwheel.forms import compiled
from tests.sim import test_simulator

ROOT = Path(__file__).resolve().parents[2]

OF_HOOKS = (
    "tests/unit/api", "tests/unit/runtime/test_executor.py", "tests/unit/runtime/test_sources.py", "tests/unit/testing",
    "tests/property/test_timer_order.py",
)  # fmt: skip
"""Tests of what is compiled, and of what is built right on it."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Where a process finds the compiled modules first, and the tests behind them."""
    assert not compiled(), "these tests compare with what is interpreted"
    place = tmp_path_factory.mktemp("compiled")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "compiled.py", place],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    if "no C compiler" in made.stderr:
        pytest.skip(made.stderr)
    return [str(place), str(ROOT)]


def python(path: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the compiled modules."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_simulations_leave_the_same_traces(path: list[str]) -> None:
    code = "import millwheel.forms; from tests.sim import test_simulator; print(*test_simulator.traces())"
    answer = python(path, "-c", code)
    assert (answer.stdout.split(), answer.stderr) == (test_simulator.traces(), "")


def test_the_tests_of_hooks_pass(path: list[str]) -> None:
    place = f"pythonpath={path[0]} ."
    answer = python(path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", place, *OF_HOOKS)
    assert answer.returncode == 0, answer.stdout[-5_000:]
    assert " passed" in answer.stdout.splitlines()[-1]


def test_the_command_says_that_it_is_compiled(path: list[str]) -> None:
    assert python(path, "-m", "millwheel", "--version").stdout.endswith(", compiled\n")
