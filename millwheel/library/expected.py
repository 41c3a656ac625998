"""What people give to a chain, checked where they give it: another thing is answered with what is expected.

Lives here: checks of types.  Never here: checks of values, which the thing itself makes.
"""

from __future__ import annotations

import inspect
from typing import Any

from millwheel.coders import Coder
from millwheel.errors import WiringError
from millwheel.library.aggregations import Aggregation
from millwheel.library.triggers import AtWatermark, Once, Repeat
from millwheel.library.windows import Aligned, Sessions, Validity, Wall


def check_windows(windows: object) -> None:
    """Windows of any kind."""
    if not isinstance(windows, Aligned | Sessions | Validity | Wall):
        raise WiringError(f"window(...) needs windows, got {windows!r:.80}; for example Fixed(minutes=10)")


def check_trigger(trigger: object) -> None:
    """A trigger, or None for the default one."""
    if trigger is not None and not isinstance(trigger, AtWatermark | Repeat | Once):
        raise WiringError(f"trigger= needs a trigger, got {trigger!r:.80}; for example Repeat(EveryRecords(100))")


def check_aggregation(aggregation: object) -> None:
    """An aggregation, and not the function that makes one."""
    if not isinstance(aggregation, Aggregation):
        name = getattr(aggregation, "__name__", "")
        example = f"call it, {name}(...)" if name and name != "<lambda>" else "for example count()"
        raise WiringError(f"an aggregation is expected, got {aggregation!r:.80}: {example}")


def check_function(function: object, step: str) -> None:
    """A function of a value, or None for the default one."""
    if function is not None and not callable(function):
        raise WiringError(f"{step}(...) needs a function of a value, got {function!r:.80}")
    # What an async function, or in a filter one that yields, returns is never false: all would be let through.
    waits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if waits or (step == "filter" and inspect.isgeneratorfunction(function)):
        raise WiringError(f"{step}(...) needs a plain function, got {function!r:.80}, which is async or yields")


def check_coder(coder: object, step: str) -> None:
    """A coder, or None where there is a default."""
    if coder is not None and (isinstance(coder, type) or not isinstance(coder, Coder)):
        raise WiringError(f"{step}(...) needs a coder, got {coder!r:.80}; for example JsonCoder(int)")


def check_keyed(other: Any, step: str) -> None:
    """Values by key.  Other chains have something to say themselves."""
    try:
        _ = other.ports
    except AttributeError:
        raise WiringError(
            f"{step}(...) needs values by key, got {other!r:.80}: give a chain with .key_by(...)"
        ) from None


def not_of_windows(chain: object, name: str, of_keyed: bool) -> Exception:
    """What to say when values in windows are asked for `name`, which values by key may have."""
    if name.startswith("join") or name in ("coder", "ports"):
        return WiringError(
            "values in windows cannot be joined: give the windows to the join, as in a.join(b, Fixed(minutes=10)); "
            "a row comes as soon as its values have met, in sessions at their end, so there is no trigger"
        )
    if of_keyed and not name.startswith("_"):
        return WiringError(
            f"{name}(...) is a step of values by key: call it without .window(...), or after .aggregate(...)"
        )
    return AttributeError(f"values in windows have no {name!r}: call .aggregate(...) first", name=name, obj=chain)
