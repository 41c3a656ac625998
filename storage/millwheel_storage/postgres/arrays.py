"""Columns as Postgres arrays in binary form, each packed as a whole.  psycopg would pack element by element, 1 to 2 us each.

Lives here: the packing, and what makes psycopg send it as it is.  Never here: statements.  Nulls and several dimensions are
not supported, because no statement needs them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import AnyStr, ClassVar, Final

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_LENGTHS: Final = [struct.pack(">i", size) for size in range(1_024)]
_TEXT_LENGTHS: Final = [length.decode() for length in _LENGTHS[:128]]
"""Those whose UTF-8 they are themselves."""

_length = struct.Struct(">i").pack
_bigint = struct.Struct(">iq").pack
_head = struct.Struct(">iiiii").pack


class ByteaArray:
    """`bytea[]`; one packed is `data`."""

    __slots__ = ("data",)
    oid: ClassVar = 1001

    def __init__(self, column: Sequence[bytes]) -> None:
        self.data = _packed(17, column)

    @classmethod
    def of_texts(cls, column: Iterable[str]) -> ByteaArray:
        """Keys, entries and tags, which are stored as their UTF-8."""
        packed = cls.__new__(cls)
        packed.data = _packed_texts(17, list(column))
        return packed


class TextArray:
    """`text[]` of few different texts."""

    __slots__ = ("data",)
    oid: ClassVar = 1009

    def __init__(self, column: Sequence[str]) -> None:
        encoded = {text: text.encode() for text in set(column)}
        self.data = _packed(25, [encoded[text] for text in column])


class BigintArray:
    """`bigint[]`."""

    __slots__ = ("data",)
    oid: ClassVar = 1016

    def __init__(self, column: Sequence[int]) -> None:
        self.data = _array(20, len(column), b"".join([_bigint(8, number) for number in column]))


def _packed(element: int, column: Sequence[bytes]) -> bytes:
    """Every element behind its length, four bytes each."""
    try:
        data = _behind_lengths(b"", _LENGTHS, column)
    except IndexError:
        data = b"".join([_length(len(one)) + one for one in column])
    return _array(element, len(column), data)


def _packed_texts(element: int, column: Sequence[str]) -> bytes:
    """The same of the UTF-8 of texts.  Short ASCII, which most keys are, is encoded whole: half the time."""
    with suppress(IndexError):
        text = _behind_lengths("", _TEXT_LENGTHS, column)
        if text.isascii():
            return _array(element, len(column), text.encode())
    return _packed(element, [text.encode() for text in column])


def _behind_lengths(empty: AnyStr, lengths: Sequence[AnyStr], column: Sequence[AnyStr]) -> AnyStr:
    """Raises IndexError when an element is longer than there are `lengths`."""
    if column and len(column[0]) == len(column[-1]) and len(set(map(len, column))) == 1:
        length = lengths[len(column[0])]
        return length + length.join(column)  # a third of the time
    return empty.join([lengths[len(one)] + one for one in column])


def _array(element: int, count: int, data: bytes) -> bytes:
    """Number of dimensions, a flag for nulls, type of the elements, their number, the first index."""
    return _head(1, 0, element, count, 1) + data


class _ByteaDumper(Dumper):
    format = Format.BINARY
    oid = ByteaArray.oid

    def dump(self, obj: ByteaArray) -> bytes:
        return obj.data


class _TextDumper(Dumper):
    format = Format.BINARY
    oid = TextArray.oid

    def dump(self, obj: TextArray) -> bytes:
        return obj.data


class _BigintDumper(Dumper):
    format = Format.BINARY
    oid = BigintArray.oid

    def dump(self, obj: BigintArray) -> bytes:
        return obj.data


def register(adapters: AdaptersMap) -> None:
    """Teach a connection to send these."""
    adapters.register_dumper(ByteaArray, _ByteaDumper)
    adapters.register_dumper(TextArray, _TextDumper)
    adapters.register_dumper(BigintArray, _BigintDumper)
