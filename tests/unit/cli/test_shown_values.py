"""What `millwheel state` shows of a stored value: text as it is stored, all else as its coder decodes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millwheel import BytesCoder, Coder, JsonCoder, ListCell, MapCell, MsgpackCoder, TextCoder, ValueCell
from millwheel.api.state import Cell
from millwheel.cli.shown_values import shown_stored
from millwheel.cli.state import shown_state
from millwheel.library import Reply
from millwheel_storage.postgres.overlays import StateRow


class Spot(msgspec.Struct):
    city: str
    visits: int


class Odd:
    fingerprint = "odd/1"

    def encode(self, value: int, /) -> bytes:
        return bytes([value])

    def decode(self, data: bytes, /) -> int:
        if data[0] > 9:
            raise ValueError("too much")
        return data[0]


@pytest.mark.parametrize(
    ("coder", "value", "shown"),
    [
        (JsonCoder(Spot), Spot("Ulm", 3), '{"city":"Ulm","visits":3}'),
        (MsgpackCoder(Spot), Spot("Ulm", 3), '{"city":"Ulm","visits":3}'),
        (
            MsgpackCoder(Reply[Spot, bytes]),
            Reply(Spot("Ulm", 3), b"a", "", 1),
            '{"value":{"city":"Ulm","visits":3},"answer":"a","error":"","attempts":1}',
        ),
        (MsgpackCoder(int), 50, "50"),
        (TextCoder(), "a\nb", "a\\nb"),
        (BytesCoder(), b"\xff!", "\\xff!"),
        (Odd(), 7, "7"),
        (Odd(), 10, "\\n"),
    ],
)
def test_a_value_is_shown_so_that_people_can_read_it(coder: Coder[Any], value: Any, shown: str) -> None:
    assert shown_state(StateRow("k", "it", "", coder.encode(value)), ValueCell(coder, default=None)) == shown
    for cell in (MapCell(coder), ListCell(coder)):
        assert shown_state(StateRow("k", "it", "e", coder.encode(value)), cell) == shown


def test_bytes_without_a_coder_are_shown_as_stored() -> None:
    assert shown_stored(b"\x93a", None) == "\\x93a"


def test_the_length_of_a_list_and_a_cell_that_is_not_in_the_code_are_shown_as_stored() -> None:
    cell: Cell = ListCell(MsgpackCoder(int))
    assert shown_state(StateRow("k", "it", "", b"12"), cell) == "12"
    assert shown_state(StateRow("k", "gone", "", b"\x93"), None) == "\\x93"
