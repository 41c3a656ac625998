"""Coroutines that never wait."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """One step is all that a coroutine of the memory store takes."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    result: T = stopped.value.value
    return result
