"""Planted bugs by subject; `tests.mutants` runs them.

Lives here: the registry.  A planted bug replaces one piece of the shipping code.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis
import psycopg
import pytest

import millwheel_injectors

assert hypothesis  # what almost all tests import, and so does each copy of this process
assert psycopg
assert millwheel_injectors

ROOT = Path(__file__).resolve().parents[2]

Patches = dict[tuple[Any, str], Any]
MUTANTS: dict[str, Callable[[], Patches]] = {}


UNIT_ONLY: dict[str, str] = {}
"""Mutants that neither seeds nor crash points notice, and the file of unit tests, or the test, that does."""


def mutant(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Register a mutant; its name is its docstring's first line."""
    assert make.__doc__ is not None
    name = make.__doc__.splitlines()[0].rstrip(".")
    assert name not in MUTANTS, f"two mutants are called {name!r}"
    MUTANTS[name] = make
    return make


LOOPED: set[str] = set()
"""Mutants that seeds with loops are to notice (`tests.sim.hops`)."""


def looped(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Register a mutant of what only pipelines with loops have."""
    mutant(make)
    assert make.__doc__ is not None
    LOOPED.add(make.__doc__.splitlines()[0].rstrip("."))
    return make


CUT: set[str] = set()
"""Mutants that seeds of pipelines under snapshots are to notice (`tests.sim.cuts`)."""


def cut(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Register a mutant of what only snapshots have."""
    mutant(make)
    assert make.__doc__ is not None
    CUT.add(make.__doc__.splitlines()[0].rstrip("."))
    return make


SHARED_CUT: set[str] = set()
"""Mutants that seeds of clusters under snapshots are to notice (`tests.sim.cluster_cuts`)."""


def shared_cut(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Register a mutant of what only clusters under snapshots have."""
    mutant(make)
    assert make.__doc__ is not None
    SHARED_CUT.add(make.__doc__.splitlines()[0].rstrip("."))
    return make


LOOP_CUT: set[str] = set()
"""Mutants that seeds of pipelines with loops under snapshots are to notice (`tests.sim.loop_cuts`)."""


def cut_in_loop(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Register a mutant of what only loops under snapshots have."""
    mutant(make)
    assert make.__doc__ is not None
    LOOP_CUT.add(make.__doc__.splitlines()[0].rstrip("."))
    return make


SHARED_LOOP_CUT: set[str] = set()
"""Mutants that seeds of clusters with loops under snapshots are to notice (`tests.sim.loop_cut_fleets`)."""


def shared_cut_in_loop(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Register a mutant of what only loops under snapshots have, on a cluster."""
    mutant(make)
    assert make.__doc__ is not None
    SHARED_LOOP_CUT.add(make.__doc__.splitlines()[0].rstrip("."))
    return make


CLUSTERED: set[str] = set()
"""Mutants that seeds of clusters are to notice (`tests.sim.fleets`)."""


def clustered(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Register a mutant of what only clusters have."""
    mutant(make)
    assert make.__doc__ is not None
    CLUSTERED.add(make.__doc__.splitlines()[0].rstrip("."))
    return make


def only(path: str) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Register a mutant that only the unit tests in `path` notice; `path` may name one test, if the others take long."""

    def register(make: Callable[[], Patches]) -> Callable[[], Patches]:
        mutant(make)
        assert make.__doc__ is not None
        UNIT_ONLY[make.__doc__.splitlines()[0].rstrip(".")] = path
        return make

    return register


def unit_test_notices(name: str) -> bool:
    """Whether the unit tests that are to notice a mutant fail with it.

    They run in a copy of this process, which may have no threads.  A new process would take longer to import what it needs
    than to test.
    """
    gc.freeze()  # or the copy would collect garbage among all that is here, and so copy its memory
    copy = os.fork()
    if copy == 0:
        os._exit(_status_of_tests(name))
    gc.unfreeze()
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == pytest.ExitCode.TESTS_FAILED


def _status_of_tests(name: str) -> int:
    """Pytest's, of the unit tests that are to notice `name`; they say nothing."""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        os.chdir(ROOT)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they would have to be imported after pytest
        with planted(name):
            options = ["-q", "-x", "--tb=no", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
            return int(pytest.main([*options, UNIT_ONLY[name]]))
    except BaseException:
        return pytest.ExitCode.INTERNAL_ERROR


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The bug `name` is in the code."""
    with contextlib.ExitStack() as stack:
        for (owner, attribute), value in MUTANTS[name]().items():
            stack.enter_context(patch.object(owner, attribute, value))
        yield
