"""Planted bugs by subject; `tests.mutants` runs them.

Lives here: the registry.  A planted bug replaces one piece of the shipping code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

Patches = dict[tuple[Any, str], Any]
MUTANTS: dict[str, Callable[[], Patches]] = {}


def mutant(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Register a mutant; its name is its docstring's first line."""
    assert make.__doc__ is not None
    name = make.__doc__.splitlines()[0].rstrip(".")
    assert name not in MUTANTS, f"two mutants are called {name!r}"
    MUTANTS[name] = make
    return make


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The bug `name` is in the code."""
    with contextlib.ExitStack() as stack:
        for (owner, attribute), value in MUTANTS[name]().items():
            stack.enter_context(patch.object(owner, attribute, value))
        yield
