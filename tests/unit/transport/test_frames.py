"""Messages as frames: what waits is bounded, and a message that is longer than a frame goes in parts."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
import pytest

from millwheel import limits
from millwheel.cluster import RunEnding
from millwheel.errors import WireError
from millwheel.host.messages import Delivery, MapChanged, Message, RunEnded
from millwheel.transport.frames import BEAT, Incoming, Outgoing
from millwheel.transport.wire_form import encoded
from tests.unit.transport.network import delivery


def said(chars: int) -> RunEnded:
    """A message of about so many bytes."""
    return RunEnded(RunEnding(0, 0, True, "x" * chars))


def frames(outgoing: Outgoing) -> list[bytes]:
    found = []
    while (frame := outgoing.frame()) is not None:
        found.append(frame)
    return found


def test_what_has_gone_out_makes_room_for_more() -> None:
    outgoing = Outgoing()
    for number in range(3):
        assert outgoing.put(MapChanged(number))
    assert outgoing.waiting_bytes > 0
    assert len(frames(outgoing)) == 1
    assert (outgoing.waiting_bytes, bool(outgoing)) == (0, False)


def test_a_message_has_room_when_nothing_waits_however_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNEL_QUEUE_LIMIT_BYTES", 100)
    outgoing = Outgoing()
    assert outgoing.put(said(1_000))
    assert not outgoing.put(MapChanged(1))
    assert len(frames(outgoing)) == 1
    assert outgoing.put(MapChanged(1))


@pytest.mark.parametrize(("spare", "is_taken"), [(0, True), (-1, False)])
def test_what_waits_is_bounded_to_the_byte(spare: int, is_taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    outgoing = Outgoing()
    assert outgoing.put(MapChanged(1))
    size = outgoing.waiting_bytes
    monkeypatch.setattr(limits, "CHANNEL_QUEUE_LIMIT_BYTES", 2 * size + spare)
    assert outgoing.put(MapChanged(2)) is is_taken
    assert outgoing.waiting_bytes == (2 * size if is_taken else size)


def test_a_sign_of_life_may_come_in_the_middle_of_a_message_and_another_message_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CHANNEL_FRAME_BYTES", 100)
    outgoing, other, incoming = Outgoing(), Outgoing(), Incoming()
    assert outgoing.put(said(250))
    assert other.put(MapChanged(1))
    first, *more = frames(outgoing)
    assert [message for part in (first, BEAT, *more) for message in incoming.messages(part)] == [said(250)]
    assert incoming.messages(first) == []
    with pytest.raises(WireError, match="in the middle of another one"):
        incoming.messages(*frames(other))


def of_long_keys(records: int) -> Delivery:
    """It counts less than it is: a key is taken for short."""
    made = delivery([*range(records)])
    return Delivery(msgspec.structs.replace(made.bundle, keys=["𝄞" * 200] * records), made.sequencer, False)


def test_a_frame_is_about_as_long_as_it_may_be_and_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNEL_FRAME_BYTES", 1_000)
    short: list[Message] = [MapChanged(number) for number in range(300)]
    sent = [*short, said(600), said(700), of_long_keys(1), *short[:5], of_long_keys(2), said(900), *short[:7]]
    outgoing, incoming = Outgoing(), Incoming()
    assert all(outgoing.put(message) for message in sent)
    assert outgoing.waiting_bytes > len(sent) * limits.CHANNEL_MESSAGE_OVERHEAD_BYTES
    found = frames(outgoing)
    assert max(map(len, found)) < 1_000 + 300, "with names of fields"
    assert [message for frame in found for message in incoming.messages(frame)] == sent
    assert outgoing.waiting_bytes == 0


def test_messages_that_are_longer_than_a_frame_come_in_parts_and_each_is_bounded_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CHANNEL_FRAME_BYTES", 100)
    monkeypatch.setattr(limits, "CHANNEL_MESSAGE_LIMIT_BYTES", 1_000)
    outgoing, incoming, heard = Outgoing(), Incoming(), list[Message]()
    sent: list[Message] = [said(700), MapChanged(1), said(800), said(90), MapChanged(2)]
    for message in sent:
        assert outgoing.put(message)
    found = frames(outgoing)
    assert len(found) > 15
    for frame in found:
        heard += incoming.messages(frame)
    assert heard == sent
    assert outgoing.put(said(2_000))
    found = frames(outgoing)
    with pytest.raises(WireError, match="longer than 1,000 bytes"):
        heard += [message for frame in found for message in incoming.messages(frame)]


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_message_may_be_as_long_as_the_limit_and_no_longer(monkeypatch: pytest.MonkeyPatch, beyond: int) -> None:
    message = said(700)
    monkeypatch.setattr(limits, "CHANNEL_FRAME_BYTES", 100)
    monkeypatch.setattr(limits, "CHANNEL_MESSAGE_LIMIT_BYTES", len(encoded(message)) - beyond)
    outgoing, incoming = Outgoing(), Incoming()
    assert outgoing.put(message)
    with pytest.raises(WireError, match="CHANNEL_MESSAGE_LIMIT_BYTES") if beyond else nullcontext():
        assert [one for frame in frames(outgoing) for one in incoming.messages(frame)] == [message]
