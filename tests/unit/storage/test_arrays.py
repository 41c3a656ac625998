"""Packed columns are, byte for byte, what psycopg would have sent for the list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Int8

from millwheel_storage.arrays import BigintArray, ByteaArray, TextArray


def by_psycopg(column: list[Any]) -> bytes:
    dumper = Transformer().get_dumper(column, PyFormat.BINARY)
    packed = dumper.dump(column)
    assert packed is not None
    return bytes(packed)


@given(st.lists(st.binary(max_size=5), min_size=1))
def test_bytes(column: list[bytes]) -> None:
    assert ByteaArray(column).data == by_psycopg(column)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=3), min_size=1))
def test_texts(column: list[str]) -> None:
    assert TextArray(column).data == by_psycopg(column)
    assert ByteaArray.of_texts(column).data == by_psycopg([text.encode() for text in column])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_numbers(column: list[int]) -> None:
    assert BigintArray(column).data == by_psycopg([Int8(number) for number in column])


@pytest.mark.parametrize("size", [1_023, 1_024, 70_000])
def test_long_elements(size: int) -> None:
    column = [b"", b"x" * size, b"y"]
    assert ByteaArray(column).data == by_psycopg(column)
