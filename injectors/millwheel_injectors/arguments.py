"""What is wrong with an argument of a source, said where it is given.

Lives here: checks of single arguments, whatever the source.  All raise `ValueError` with the source, the argument, and what
to give instead.  Never here: checks that need a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import msgspec


def check_length_us(what: str, given: object) -> None:
    """Whole microseconds, at least 0; `what` says whose."""
    if type(given) is not int or given < 0:
        raise ValueError(f"{what}: give whole microseconds, at least 0; of seconds that is int(seconds * 1_000_000)")


def check_lengths_us(source: str, **given: object) -> None:
    """The same of arguments by name, where None stands for none."""
    for name, value in given.items():
        if value is not None:
            check_length_us(f"source {source}: {name}={value!r:.80}", value)


def check_growing(source: str, tail: bool, **given: object) -> None:
    """Arguments by name that have an effect on growing files only."""
    for name, value in given.items():
        if value is not None and not tail:
            raise ValueError(f"source {source}: {name} is for files that grow: add tail=True, or leave it out")


def check_later(source: str, given: object) -> None:
    """What bounds the event times of files that are not there yet."""
    if given is not None and type(given) is not int and not callable(given):
        raise ValueError(
            f"source {source}: later_files_not_before={given!r:.80}: give a time in whole microseconds, or a function "
            "without arguments"
        )


def check_switches(source: str, **given: object) -> None:
    """Arguments by name that are on or off."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise ValueError(f"source {source}: {name}={value!r:.80}: give True or False")


def check_functions(source: str, of: str, **given: object) -> None:
    """Arguments by name that are functions of `of`, where None stands for none."""
    for name, value in given.items():
        if value is not None and not callable(value):
            raise ValueError(f"source {source}: {name}={value!r:.80}: give a function of {of}")


def check_path(source: str, name: str, given: object) -> None:
    """A path, where None stands for none."""
    if given is not None and (not isinstance(given, str | os.PathLike) or given == ""):
        raise ValueError(f"source {source}: {name}={given!r:.80}: give a path")


def check_names(what: str, given: object) -> None:
    """A list of names, where None stands for none; `what` says whose, and ends as the argument is written."""
    shown = what.format(f"{given!r:.80}")
    if given is None:
        return
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{shown}: give a list of names")
    names = [*given]
    if len({*names}) < len(names):
        raise ValueError(f"{shown}: two columns have one name")


def check_type(what: str, given: Any) -> None:
    """A type that JSON can be read as; `what` says whose."""
    try:
        msgspec.json.Decoder(given)
    except TypeError as error:
        raise ValueError(f"{what}: give a type, for example dict: {error}") from error
