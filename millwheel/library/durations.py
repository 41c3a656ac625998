"""Lengths of time as people write them.  All of them become int microseconds, the unit of millwheel.

Lives here: conversion of lengths.  Never here: instants, clocks, calendars.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from millwheel.errors import WiringError
from millwheel.limits import BARE_LENGTH_US
from millwheel.model import DAY, HOUR, MINUTE, SECOND, whole_time

Duration: TypeAlias = int | timedelta
"""A length of time: int microseconds, or a timedelta."""


def seconds(number: float) -> int:
    """So many seconds, us.

    >>> seconds(1.5)
    1500000
    """
    return _whole(number, SECOND, "seconds")


def minutes(number: float) -> int:
    """So many minutes, us."""
    return _whole(number, MINUTE, "minutes")


def hours(number: float) -> int:
    """So many hours, us."""
    return _whole(number, HOUR, "hours")


def days(number: float) -> int:
    """So many times 24 hours, us; for the days of a calendar see `Calendar`."""
    return _whole(number, DAY, "days")


def _whole(number: float, unit_us: int, name: str) -> int:
    try:
        return round(number * unit_us)
    except (TypeError, ValueError, OverflowError):  # a text or None, not a number, without end
        raise WiringError(f"{name}({number!r:.80}): give a number") from None


def duration(given: Duration, what: str) -> int:
    """`given` in us; raises `WiringError` when it is negative, or a number alone that was meant in another unit.

    >>> duration(minutes(5), "the allowed lateness")
    300000000
    """
    found = length(given, what)
    if type(given) is int and 0 < given < BARE_LENGTH_US:
        raise WiringError(_other_unit(given, what))
    return found


def length(given: Duration, what: str) -> int:
    """The same of a length that data says, which may be as short as it is."""
    found = given // timedelta(microseconds=1) if isinstance(given, timedelta) else whole_time(given, what)
    if found < 0:
        raise WiringError(f"{what} is {given!r}: a length of time is not negative")
    return found


def total(what: str, given: Duration | None, **units: float) -> int:
    """The one length that a constructor was given, as `given` or as units, us; at least two us.

    >>> total("a window", None, minutes=1, seconds=30)
    90000000
    """
    found = sum((_UNITS[unit](number) for unit, number in units.items()), 0 if given is None else length(given, what))
    if found < 2:
        raise WiringError(f"{what} has a length of {found} us: give one, for example minutes=10")
    if type(given) is int and given < BARE_LENGTH_US:
        raise WiringError(_other_unit(given, what))
    return found


def _other_unit(given: int, what: str) -> str:
    return (
        f"{what} has a length of {given} us, for a number alone is of microseconds: write seconds({given})"
        f" for seconds, or timedelta(microseconds={given}) if that is what you mean"
    )


_UNITS = {"seconds": seconds, "minutes": minutes, "hours": hours, "days": days}
