"""Planted bugs fit the code that they break: what breaks in any other way than it says proves nothing."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

import pytest

import tests.mutants  # noqa: F401, every planted bug registers itself
from tests.planted import MUTANTS


def function(found: Any) -> FunctionType | None:
    found = getattr(found, "__func__", found)
    return found if isinstance(found, FunctionType) else None


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_planted_takes_what_it_replaces_takes(name: str) -> None:
    for (owner, attribute), planted in MUTANTS[name]().items():
        shipping, other = function(inspect.getattr_static(owner, attribute)), function(planted)
        if shipping is None or other is None:
            continue
        taken = inspect.signature(shipping).parameters.values()
        by_place = [one for one in taken if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        by_name = [one for one in taken if one.kind is one.KEYWORD_ONLY]
        for least in (True, False):
            wanted = [one for one in by_place if not least or one.default is one.empty]
            named = {one.name: 0 for one in by_name if not least or one.default is one.empty}
            try:
                inspect.signature(other).bind(*wanted, **named)
            except TypeError as error:
                raise AssertionError(
                    f"{owner.__name__}.{attribute} does not take what the shipping one takes: {error}"
                ) from None
