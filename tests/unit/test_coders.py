"""Coders give back what they were given, refuse the rest, and change their fingerprint with their type."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from google.protobuf.struct_pb2 import Struct as ProtobufStruct
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import BytesCoder, Coder, JsonCoder, MsgpackCoder, ProtobufCoder, TextCoder
from millwheel.errors import CoderError, WiringError
from tests.effort import examples

texts = st.text(st.characters(exclude_categories=["Cs"]))
integers = st.integers(-(2**63), 2**63 - 1)


class Point(msgspec.Struct, frozen=True):
    x: int
    name: str | None = None


@dataclass(frozen=True)
class Pair:
    left: float
    right: list[str]


class Bill(msgspec.Struct, frozen=True):
    id: UUID
    total: Decimal
    due: date
    paid: datetime | None
    parts: dict[str, Decimal]


money = st.decimals(allow_nan=False, allow_infinity=False)
times = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5, minutes=30))]))
bills = st.builds(Bill, st.uuids(), money, st.dates(), st.none() | times, st.dictionaries(texts, money, max_size=3))
points = st.builds(Point, integers, st.none() | texts)
pairs = st.builds(Pair, st.floats(allow_nan=False, allow_infinity=False), st.lists(texts))
plain = st.recursive(
    st.none() | st.booleans() | integers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)

ROUND_TRIPS: list[tuple[Coder[Any], st.SearchStrategy[Any]]] = [
    (BytesCoder(), st.binary()),
    (TextCoder(), texts),
    *((coder(int), integers) for coder in (JsonCoder, MsgpackCoder)),
    *((coder(Point), points) for coder in (JsonCoder, MsgpackCoder)),
    *((coder(Pair), pairs) for coder in (JsonCoder, MsgpackCoder)),
    *((coder(dict[str, list[int]]), st.dictionaries(texts, st.lists(integers))) for coder in (JsonCoder, MsgpackCoder)),
    *((coder(Point | None), st.none() | points) for coder in (JsonCoder, MsgpackCoder)),
    *((coder(Any), plain) for coder in (JsonCoder, MsgpackCoder)),
    *((coder(Decimal), st.decimals(allow_nan=False)) for coder in (JsonCoder, MsgpackCoder)),
    *((coder(date), st.dates()) for coder in (JsonCoder, MsgpackCoder)),
    *((coder(datetime), st.datetimes(timezones=st.just(UTC))) for coder in (JsonCoder, MsgpackCoder)),
    *((coder(UUID), st.uuids()) for coder in (JsonCoder, MsgpackCoder)),
    *((coder(Bill), bills) for coder in (JsonCoder, MsgpackCoder)),
    (MsgpackCoder(bytes), st.binary()),
    (ProtobufCoder(Timestamp), st.builds(Timestamp, seconds=integers, nanos=st.integers(0, 999_999_999))),
]


@pytest.mark.parametrize(("coder", "values"), ROUND_TRIPS, ids=lambda value: getattr(value, "fingerprint", ""))
@given(data=st.data())
def test_round_trip(coder: Coder[Any], values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    value = data.draw(values)
    encoded = coder.encode(value)
    assert type(encoded) is bytes
    assert coder.decode(encoded) == value
    assert coder.encode(coder.decode(encoded)) == encoded


WHOLE = [(coder, values) for coder, values in ROUND_TRIPS if isinstance(coder, JsonCoder | MsgpackCoder)]


@pytest.mark.parametrize(("coder", "values"), WHOLE, ids=lambda value: getattr(value, "fingerprint", ""))
@settings(max_examples=examples(10))
@given(data=st.data())
def test_more_bytes_than_those_of_a_value_are_refused(
    coder: Coder[Any], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    encoded = coder.encode(data.draw(values))
    for more in (b"\0", encoded):
        if not (encoded + more).isdigit():
            with pytest.raises(CoderError, match="cannot decode"):
                coder.decode(encoded + more)
    with pytest.raises(CoderError, match="cannot decode"):
        coder.decode(b"")


class Token(bytes):
    """Bytes that are more than bytes."""


def test_bytes_that_would_come_back_as_something_else_are_refused() -> None:
    with pytest.raises(CoderError, match="got Token"):
        BytesCoder().encode(Token(b"a"))


def test_a_protobuf_map_has_the_same_bytes_in_whatever_order_it_was_filled() -> None:
    coder, names = ProtobufCoder(ProtobufStruct), [f"field {n}" for n in range(50)]
    there, back = ProtobufStruct(), ProtobufStruct()
    for one, other in zip(names, reversed(names), strict=True):
        there[one], back[other] = 1, 1
    assert coder.encode(there) == coder.encode(back)


def test_the_same_value_has_the_same_bytes_whatever_its_order() -> None:
    for coder in (JsonCoder(dict[str, int]), MsgpackCoder(dict[str, int])):
        assert coder.encode({"a": 1, "b": 2}) == coder.encode({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("coder", "value"),
    [
        (BytesCoder(), "text"),
        (BytesCoder(), bytearray(b"x")),
        (TextCoder(), b"bytes"),
        (TextCoder(), "\ud800"),
        (JsonCoder(Any), object()),
        (JsonCoder(str), "\ud800"),
        (MsgpackCoder(int), 2**80),
        (ProtobufCoder(Timestamp), "text"),
    ],
)
def test_a_value_of_another_kind_is_refused(coder: Coder[Any], value: Any) -> None:
    with pytest.raises(CoderError):
        coder.encode(value)


@pytest.mark.parametrize(
    ("coder", "data"),
    [
        (TextCoder(), b"\xff"),
        (JsonCoder(int), b'"text"'),
        (JsonCoder(int), b""),
        (JsonCoder(Point), b"{}"),
        (MsgpackCoder(str), b"\x01"),
        (MsgpackCoder(int), b"\xc1"),
        (ProtobufCoder(Timestamp), b"\xff"),
    ],
)
def test_bytes_that_the_coder_never_wrote_are_refused(coder: Coder[Any], data: bytes) -> None:
    with pytest.raises(CoderError, match="cannot decode"):
        coder.decode(data)


def test_an_error_shows_the_value_but_not_all_of_it() -> None:
    with pytest.raises(CoderError) as caught:
        BytesCoder().encode("x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_fingerprints_follow_protocol_and_type() -> None:
    found = [c.fingerprint for c, _ in ROUND_TRIPS] + [JsonCoder(float).fingerprint, JsonCoder(list[int]).fingerprint]
    assert len(set(found)) == len(found)
    assert JsonCoder(Point).fingerprint == JsonCoder(Point).fingerprint

    class Point2(msgspec.Struct, frozen=True):
        x: int
        name: str | None = None
        y: int = 0

    assert JsonCoder(Point2).fingerprint != JsonCoder(Point).fingerprint


class Colour(StrEnum):
    RED = "red"


class Level(Enum):
    LOW = "low"


class Nested(msgspec.Struct):
    above: Nested | None
    counts: list[dict[int, str]] = []


@pytest.mark.parametrize("coder", [JsonCoder, MsgpackCoder])
@pytest.mark.parametrize(
    ("type_", "odd"),
    [(dict[int, str], "int"), (dict[str, dict[UUID, int]], "uuid"), (Nested, "int"),
     (dict[tuple[int, int], int] | None, "tuple"), (dict[Level, int], "one of 'low'"),
     (dict[bytes, dict[float, int]], "bytes, float")],
)  # fmt: skip
def test_keys_of_dicts_that_are_no_texts_are_refused_before_there_is_a_value(coder: Any, type_: Any, odd: str) -> None:
    with pytest.raises(WiringError, match=f"keys of a dict must be texts, not {odd}: take a list of pairs"):
        coder(type_)


@pytest.mark.parametrize("coder", [JsonCoder, MsgpackCoder])
@pytest.mark.parametrize("type_", [dict, dict[str, int], dict[Any, int], dict[Colour, int], dict[Literal["red"], int]])
def test_texts_are_keys_of_dicts(coder: Any, type_: Any) -> None:
    assert coder(type_).decode(coder(type_).encode({"red": 1})) == {"red": 1}


def test_json_has_no_number_for_nan() -> None:
    nullable: JsonCoder[Any] = JsonCoder(float | None)
    assert nullable.encode(math.nan) == b"null"
    with pytest.raises(CoderError, match=r"cannot encode nan: Expected `float`, got `null`"):
        JsonCoder(float).encode(math.nan)
    assert math.isnan(MsgpackCoder(float).decode(MsgpackCoder(float).encode(math.nan)))


def test_a_time_is_given_back_or_refused() -> None:
    paris = datetime(1900, 1, 1, tzinfo=ZoneInfo("Europe/Paris"))  # 9 minutes and 21 seconds from UTC
    bill = Bill(UUID(int=1), Decimal(1), date(2026, 1, 1), paris, {})
    refused: list[tuple[Coder[Any], Any]] = [(JsonCoder(datetime), paris), (JsonCoder(Bill), bill)]
    for coder, value in refused:
        with pytest.raises(CoderError, match="not in whole minutes; convert it to UTC"):
            coder.encode(value)
    assert MsgpackCoder(Bill).decode(MsgpackCoder(Bill).encode(bill)) == bill
    twice = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Paris"), fold=1)
    found = JsonCoder(datetime).decode(JsonCoder(datetime).encode(twice))
    assert found.astimezone(UTC) == twice.astimezone(UTC)


wrong_point = Point("x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("coder", "value"),
    [
        (JsonCoder(int), "seven"), (JsonCoder(int), True), (JsonCoder(str), b"x"), (MsgpackCoder(bool), 1),
        (JsonCoder(Point), wrong_point), (JsonCoder(list[float]), [math.inf]), (MsgpackCoder(dict[str, int]), {1: 2}),
    ],
)  # fmt: skip
def test_what_could_not_be_decoded_is_not_encoded(coder: Coder[Any], value: Any) -> None:
    with pytest.raises(CoderError, match="cannot encode"):
        coder.encode(value)
