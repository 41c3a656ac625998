"""What `millwheel tail` prints of values of every kind; the commands themselves are tested in integration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from millwheel.cli.tail import json_line
from millwheel.committed import Published


class Order(msgspec.Struct):
    shop: str
    cents: int


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", '"text"'),
        (b"text", '"text"'),
        (b"\xff\0", '"/wA="'),
        (Order("north", 5), '{"shop":"north","cents":5}'),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (StringValue(value="x"), '"x"'),
        (Odd(), '"<odd>"'),
        ([Odd()], '["<odd>"]'),
    ],
)
def test_a_value_is_one_line_of_json(value: Any, shown: str) -> None:
    line = json_line(Published(7, 1_500_000, value))
    assert line == f'{{"position":7,"time":"1970-01-01T00:00:01.500000+00:00","value":{shown}}}'
    assert "\n" not in line
