"""Tests with one parameter `name` that need nothing but a processor: all of a module's run at once, on every core."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.pool import AsyncResult
from typing import Any

import pytest

from tests.sim import aside

Answers = dict[str, "AsyncResult[Any]"]
"""What will be known of each name."""


def on_all_cores(request: pytest.FixtureRequest, find: Callable[[str], Any]) -> Iterator[Answers]:
    """`find` of each name that this session tests, in the order of its tests."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    names = [str(test.callspec.params["name"]) for test in tests if test.module is request.module]
    # Not forked: by then this process may have threads, Spark's for one.
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), aside.begin, (find,)) as pool:
        yield {name: pool.apply_async(find, (name,)) for name in names}
