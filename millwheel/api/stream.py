"""A stream, as producers and consumers share it (§4.3)."""

from __future__ import annotations

from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from millwheel.coders import Coder

T = TypeVar("T", default=Any)


class Stream(msgspec.Struct, Generic[T], frozen=True):
    """A named stream and the coder of its values; share one object between producers and consumers."""

    name: str
    coder: Coder[T]
