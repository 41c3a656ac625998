"""Stateless steps: filter, map, flat map.

Lives here: what they do to one value.  A chain of them runs inside the keyed step that follows: once where the record's
key is taken, and once more in the hook.  Behind a keyed step that ends in a stream, it runs before the value is
produced.  So the functions must be pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from millwheel.api.returned import still_to_run
from millwheel.coders import Coder
from millwheel.errors import WiringError

DROPPED: Final[Any] = object()
"""What a filter makes of a value that it does not let through."""


class Filter(NamedTuple):
    """Lets values through of which `keep` is true."""

    keep: Callable[[Any], bool]


class Map(NamedTuple):
    """Makes another value of each; `coder` is that of what it makes, if anybody has said so."""

    function: Callable[[Any], Any]
    coder: Coder[Any] | None = None


class FlatMap(NamedTuple):
    """Makes any number of values of each."""

    function: Callable[[Any], Iterable[Any]]


Step = Filter | Map | FlatMap
Steps = tuple[Step, ...]


def changes_values(steps: Steps) -> bool:
    """Whether there is anything but filters."""
    return any(not isinstance(step, Filter) for step in steps)


def fans_out(steps: Steps) -> bool:
    """Whether one value may become several."""
    return any(isinstance(step, FlatMap) for step in steps)


def one(steps: Steps) -> Callable[[Any], Any]:
    """All of `steps`, none of which fans out, as one function: the value, or `DROPPED`.

    >>> one((Filter(lambda n: n > 1), Map(lambda n: n * 10)))(2)
    20
    """
    if len(steps) == 1 and isinstance(steps[0], Map):
        return steps[0].function

    def run(value: Any) -> Any:
        for step in steps:
            if isinstance(step, Filter):
                if (kept := step.keep(value)) is not True and not _kept(kept):
                    return DROPPED
            else:
                value = step.function(value)
        return value

    return run


def _kept(found: Any) -> bool:
    """What a filter has said; what has not run yet says nothing."""
    if found is not True and found is not False and still_to_run(found):
        if inspect.iscoroutine(found):
            found.close()  # otherwise Python warns that nobody awaited it, far from the mistake
        raise WiringError(f"a filter returned a {type(found).__name__}, whose code has not run: give a plain function")
    return bool(found)


def many(steps: Steps, value: Any) -> Iterator[Any]:
    """What `steps` make of one value.

    >>> list(many((FlatMap(str.split), Filter(str.isalpha)), "a 1 b"))
    ['a', 'b']
    """
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    if isinstance(step, Filter):
        if _kept(step.keep(value)):
            yield from many(rest, value)
    elif isinstance(step, Map):
        yield from many(rest, step.function(value))
    else:
        for each in step.function(value):
            yield from many(rest, each)
