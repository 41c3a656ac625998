"""Every message of hosts survives the wire, and what is no message is refused."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from millwheel import limits
from millwheel.bundles import Bundle
from millwheel.errors import WireError
from millwheel.host.messages import Delivery, Hello, Message, WatermarkReport
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.transport.proto import channel_pb2 as pb
from millwheel.transport.wire_form import KINDS, decoded, encoded

ROOT = Path(__file__).resolve().parents[3]

WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def values_of(form: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of any type that a field of a message may have: a new message is tried without a line here."""
    match form:
        case inspect.IntType():
            return WHOLE
        case inspect.StrType():
            return TEXT
        case inspect.BytesType():
            return st.binary(max_size=8)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.UnionType(types):
            return st.one_of([values_of(one) for one in types])
        case inspect.VarTupleType(item):
            return st.lists(values_of(item), max_size=4).map(tuple)
        case inspect.TupleType(items):
            return st.tuples(*[values_of(one) for one in items])
        case inspect.ListType(item):
            return st.lists(values_of(item), max_size=4)
        case inspect.SetType(item):
            return st.sets(values_of(item), max_size=4)
        case inspect.FrozenSetType(item):
            return st.frozensets(values_of(item), max_size=4)
        case inspect.DictType(key, value):
            return st.dictionaries(values_of(key), values_of(value), max_size=4)
        case inspect.StructType(cls):
            return bundles() if cls is Bundle else instances_of(cls)
        case _:
            raise TypeError(f"no values for {form}: teach them to this test")


def instances_of(kind: type) -> st.SearchStrategy[Any]:
    form = inspect.type_info(kind)
    assert isinstance(form, inspect.StructType)
    return st.builds(kind, **{field.name: values_of(field.type) for field in form.fields})


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    sequences = sorted(draw(st.sets(WHOLE, max_size=6)))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=len(sequences), max_size=len(sequences)))

    subscription, sender, number, target, producer, frontier = (draw(WHOLE) for _ in range(6))
    outside = column(st.binary(max_size=8)) if draw(st.booleans()) else []
    times = column(st.integers(MIN_TIME, MAX_TIME))
    return Bundle(
        subscription=SubscriptionId(subscription),
        sender=IntervalId(sender),
        number=number,
        target=IntervalId(target),
        producer=ProducerId(producer),
        frontier=SequenceNumber(frontier),
        sequences=sequence_numbers(sequences),
        keys=column(TEXT),
        values=column(st.binary(max_size=8)),
        timestamps=times,
        epoch=draw(WHOLE),
        outside=outside,
        barrier=draw(WHOLE),
        inherited=draw(st.booleans()),
    )


MESSAGES = st.one_of([instances_of(kind) for kind in KINDS.values()])


def test_every_kind_is_known_by_the_name_of_its_class() -> None:
    assert {*KINDS.values()} == {*get_args(Message)}
    assert len(KINDS) == len(get_args(Message)) > 10


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
def test_every_message_survives_the_wire(kind: type) -> None:
    @given(instances_of(kind))
    def survives(message: Message) -> None:
        assert decoded(encoded(message)) == message

    survives()


def test_a_bundle_that_has_come_has_counted_its_size() -> None:
    sent = Bundle(
        SubscriptionId(1),
        IntervalId(2),
        3,
        IntervalId(4),
        ProducerId(5),
        SequenceNumber(6),
        sequence_numbers([7]),
        ["k"],
        [b"value"],
        [8],
    )
    size = sent.size()
    message = decoded(encoded(Delivery(sent, Sequencer(9), True)))
    assert isinstance(message, Delivery)
    assert message.bundle == sent
    assert message.bundle.size() == size == 5 + limits.RECORD_OVERHEAD_BYTES


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused_and_nothing_else_happens(data: bytes) -> None:
    with suppress(WireError):
        assert type(decoded(data)) in KINDS.values()


@given(MESSAGES, st.data())
def test_a_damaged_message_is_refused_or_another_message(message: Message, data: st.DataObject) -> None:
    whole = bytearray(encoded(message))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans()):
            whole[at] = data.draw(st.integers(0, 255))
        else:
            del whole[at + 1 :]
    with suppress(WireError):
        assert type(decoded(bytes(whole))) in KINDS.values()


def form(**columns: Any) -> bytes:
    whole: dict[str, Any] = {"sequences": [1, 2], "keys": ["a", "b"], "values": [b"", b""], "timestamps": [1, 2]}
    return pb.Envelope(delivery=pb.Delivery(**{**whole, **columns})).SerializeToString()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "has no body"),
        (b"\xff\xff\xff", "are no message"),
        (form(keys=["a"]), "columns"),
        (form(values=[b""] * 3), "columns"),
        (form(timestamps=[]), "columns"),
        (form(outside=[b"x"]), "columns"),
        (form(sequences=[2, 1]), "ascend"),
        (form(sequences=[2, 2]), "ascend"),
        (form(keys=["a", "b"]).replace(b"\x01b", b"\x01\xff"), "are no message"),
        (pb.Envelope(told=pb.Told(kind="Farewell")).SerializeToString(), "Farewell"),
        (pb.Envelope(told=pb.Told(kind="Delivery", fields=b"\x80")).SerializeToString(), "Delivery"),
        (pb.Envelope(told=pb.Told(kind="Hello", fields=b"")).SerializeToString(), "fields of a Hello"),
        (pb.Envelope(told=pb.Told(kind="Hello", fields=b"\x80")).SerializeToString(), "fields of a Hello"),
        (pb.Envelope(told=pb.Told(kind="Hello", fields=b"\x91" * 100_000)).SerializeToString(), "fields of a Hello"),
        (
            pb.Envelope(
                told=pb.Told(kind="Hello", fields=msgspec.msgpack.encode({"interval": "one"}))
            ).SerializeToString(),
            "Expected `int`",
        ),
    ],
)
def test_what_is_wrong_is_named(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        decoded(data)


@pytest.mark.parametrize(
    "message",
    [
        Hello(IntervalId(2**64), Sequencer(1), 1),
        WatermarkReport("\ud800", IntervalId(1), 1, Sequencer(1)),
        Delivery(
            Bundle(
                SubscriptionId(1), IntervalId(2), 3, IntervalId(4), ProducerId(5), SequenceNumber(2**63), [], [], [], []
            ),
            Sequencer(1),
            False,
        ),
        Delivery(
            Bundle(
                SubscriptionId(1),
                IntervalId(2),
                3,
                IntervalId(4),
                ProducerId(5),
                SequenceNumber(6),
                sequence_numbers([1]),
                ["\ud800"],
                [b""],
                [1],
            ),
            Sequencer(1),
            False,
        ),
    ],
)
def test_what_cannot_be_sent_is_named(message: Message) -> None:
    with pytest.raises(WireError, match=f"a {type(message).__name__} cannot be sent"):
        encoded(message)


def test_the_generated_code_is_that_of_the_definitions(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "proto.py"), str(tmp_path)], check=True)
    place = Path("millwheel", "transport", "proto")
    kept = ROOT / place
    made = {path.name: path.read_text() for path in (tmp_path / place).iterdir()}
    assert made == {path.name: path.read_text() for path in kept.iterdir() if "_pb2" in path.name and path.is_file()}
    assert made
