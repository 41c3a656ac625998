"""Packed columns are, byte for byte, what psycopg would have sent for the list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Int8

from millwheel_storage.postgres.arrays import BigintArray, ByteaArray, TextArray


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


@pytest.mark.parametrize("size", [0, 1, 127, 128, 1_023, 1_024, 70_000])
def test_long_elements_and_those_of_one_length(size: int) -> None:
    for column in ([b"", b"x" * size, b"y"], [b"x" * size, b"y" * size], [b"x" * size, b"", b"y" * size]):
        assert ByteaArray(column).data == by_psycopg(column)
        assert ByteaArray.of_texts([one.decode() for one in column]).data == by_psycopg(column)


def test_one_length_of_text_is_not_one_of_its_encoding() -> None:
    column = ["ab", "äb", "\0b", "\U0001f600b"]
    assert ByteaArray.of_texts(column).data == by_psycopg([text.encode() for text in column])
