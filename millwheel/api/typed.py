"""Declared types that lead type checkers to a mistake, and to nothing else.  They have no effect when a program runs.

mypy infers the types of all arguments of a call together.  A row that is written as a dict, or a list of inputs of several
types, then gets its type before that of the table or the computation is known, and correct code is refused.  mypy looks later
at an argument whose declared type contains a function of the type that it searches.  So `Row` and `Inputs` contain one.  The
other functions in `Inputs` keep mypy from taking a computation's type for the type of each of its streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeAlias, final

import msgspec
from typing_extensions import TypeVar

from millwheel.api.stream import Stream
from millwheel.graph import KeyExtractor

V = TypeVar("V")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Product_co = TypeVar("Product_co", covariant=True)


@final
class Nothing:
    """A type without a value."""

    def __init__(self) -> None:
        raise TypeError("nothing is of this type")


class AnyInput(msgspec.Struct, Generic[T_co], frozen=True):
    """What gives values of a type."""


class Input(AnyInput[T_co], Generic[T_co], frozen=True):
    """A subscription as the user writes it; made by `subscribe`."""

    stream: Stream[Any]
    key: KeyExtractor
    key_version: str = ""


class Factory(Protocol[Product_co]):
    """A class whose constructor needs no arguments, or a function without parameters."""

    def __call__(self) -> Product_co:
        """A new one."""
        ...


Row: TypeAlias = T | Callable[[T], Nothing]
"""A row of a table whose rows are `T`."""

Inputs: TypeAlias = Iterable[AnyInput[Callable[[V], Nothing]] | AnyInput[Nothing] | Input[V]]
"""Inputs of a computation of `V`: the values of each are `V`, or of a narrower type."""
