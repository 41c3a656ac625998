"""One open stream by hand: what is sent before its end, what is heard after it, and when it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import pytest

from millwheel import limits
from millwheel.host.messages import Delivery, EpochDeclared, MapChanged, Message
from millwheel.transport.conversations import Conversation, StreamBroken
from millwheel.transport.frames import BEAT, Incoming, Outgoing
from tests.unit.transport.network import delivery


class ByHand:
    """A stream whose other end is a test."""

    def __init__(self, has_called: bool = True) -> None:
        self._has_called = has_called
        self.comes: asyncio.Queue[bytes | StreamBroken | None] = asyncio.Queue()
        self.written: list[Message | str] = []
        self.finished = False
        self.frames = 0
        """Written at once."""
        self.blocked = asyncio.Event()
        self.blocked.set()

    def listen(self, heard: Callable[[bytes], None]) -> None:
        self.heard = heard

    async def read(self) -> bytes | None:
        while (frame := await self.comes.get()) is not None:
            if isinstance(frame, StreamBroken):
                raise frame
            self.heard(frame)
        return None

    def write_now(self, frame: bytes) -> bool:
        if self.blocked.is_set():
            self.frames += 1
            self.written += Incoming().messages(frame)
        return self.blocked.is_set()

    async def write(self, frame: bytes) -> None:
        await self.blocked.wait()
        self.written += ["beat"] if frame == BEAT else Incoming().messages(frame)

    async def finish(self) -> bool:
        self.finished = True
        return self._has_called


def frame_of(messages: Sequence[Message]) -> bytes:
    outgoing = Outgoing()
    for message in messages:
        assert outgoing.put(message)
    frame = outgoing.frame()
    assert frame is not None
    assert not outgoing
    return frame


async def settled() -> None:
    """Everything that can go on has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_who_closes_sends_what_waits_and_nothing_that_is_told_later() -> None:
    async def talk() -> None:
        stream, heard = ByHand(), list[Message]()
        talks = Conversation(stream, heard.append)
        stream.blocked.clear()
        running = asyncio.ensure_future(talks.run())
        talks.tell(MapChanged(1))
        talks.close()
        talks.tell(MapChanged(2))
        stream.blocked.set()
        await settled()
        assert stream.written == [MapChanged(1)]
        assert stream.finished
        assert not talks.why, "the other end has not closed it yet"
        stream.comes.put_nowait(None)
        await running
        assert (talks.why, talks.orderly) == ("the other end has closed it", True)

    asyncio.run(talk())


def test_nothing_is_heard_after_the_end_also_not_of_the_frame_in_which_it_came() -> None:
    async def talk() -> None:
        stream, heard = ByHand(), list[Message]()

        def hear(message: Message) -> None:
            heard.append(message)
            talks.end("enough")

        talks = Conversation(stream, hear)
        stream.comes.put_nowait(frame_of([MapChanged(1), EpochDeclared(2)]))
        await talks.run()
        assert heard == [MapChanged(1)]
        assert (talks.why, talks.orderly) == ("enough", False)
        talks.tell(MapChanged(3))
        await settled()
        assert stream.written == []

    asyncio.run(talk())


def test_every_look_sends_a_sign_of_life_and_silence_ends_it() -> None:
    async def talk() -> None:
        stream = ByHand()
        talks = Conversation(stream, lambda message: None)
        running = asyncio.ensure_future(talks.run())
        for _ in range(3 * limits.CHANNEL_SILENT_BEATS):
            stream.comes.put_nowait(BEAT)
            await settled()
            talks.look()
            await settled()
        assert not talks.why
        assert stream.written == ["beat"] * 3 * limits.CHANNEL_SILENT_BEATS
        for _ in range(limits.CHANNEL_SILENT_BEATS):
            assert not talks.why
            talks.look()
            await settled()
        assert talks.why.startswith("nothing came for")
        await running

    asyncio.run(talk())


def test_what_is_told_in_one_turn_is_one_frame_and_waits_for_no_task() -> None:
    async def talk() -> None:
        stream = ByHand()
        talks = Conversation(stream, lambda message: None)
        running = asyncio.ensure_future(talks.run())
        await settled()
        for number in range(3):
            talks.tell(MapChanged(number))
        await asyncio.sleep(0)
        assert (stream.written, stream.frames) == ([MapChanged(number) for number in range(3)], 1)
        talks.end("enough")
        await running

    asyncio.run(talk())


def test_a_frame_without_room_goes_before_all_that_is_told_later() -> None:
    async def talk() -> None:
        stream = ByHand()
        talks = Conversation(stream, lambda message: None)
        running = asyncio.ensure_future(talks.run())
        await settled()
        stream.blocked.clear()
        talks.tell(MapChanged(1))
        await asyncio.sleep(0)
        stream.blocked.set()  # there is room again, and the writer has not run yet
        talks.tell(MapChanged(2))
        await settled()
        stream.blocked.clear()
        talks.tell(MapChanged(3))
        await settled()
        talks.tell(MapChanged(4))  # while the writer waits for room
        await settled()
        stream.blocked.set()
        await settled()
        talks.tell(MapChanged(5))
        await settled()
        assert stream.written == [MapChanged(number) for number in range(1, 6)]
        talks.end("enough")
        await running

    asyncio.run(talk())


def test_what_is_told_in_the_turn_in_which_there_is_room_again_waits_for_what_was_told_before() -> None:
    async def talk() -> None:
        stream = ByHand()
        talks = Conversation(stream, lambda message: None)
        running = asyncio.ensure_future(talks.run())
        stream.blocked.clear()
        talks.tell(MapChanged(1))
        await settled()
        talks.tell(MapChanged(2))  # it would be sent before the writer hears that there is room
        stream.blocked.set()
        await settled()
        assert stream.written == [MapChanged(1), MapChanged(2)]
        talks.end("enough")
        await running

    asyncio.run(talk())


@pytest.mark.parametrize("has_called", [True, False])
def test_whoever_has_nothing_to_say_closes_at_once(has_called: bool) -> None:
    """The end that has called waits for the other one, which ends a stream."""

    async def talk() -> None:
        stream = ByHand(has_called)
        talks = Conversation(stream, lambda message: None)
        running = asyncio.ensure_future(talks.run())
        await settled()
        talks.close()
        await settled()
        assert stream.finished
        assert talks.why == ("" if has_called else "this process has closed it")
        stream.comes.put_nowait(None)
        await running
        assert talks.orderly

    asyncio.run(talk())


def test_all_that_waits_goes_out_before_the_end() -> None:
    async def talk() -> None:
        stream = ByHand()
        talks = Conversation(stream, lambda message: None)
        running = asyncio.ensure_future(talks.run())
        await settled()
        stream.blocked.clear()
        for number in range(3):
            talks.tell(MapChanged(number))
            await settled()
        talks.close()
        stream.blocked.set()
        await settled()
        assert (stream.written, stream.finished) == ([MapChanged(number) for number in range(3)], True)
        stream.comes.put_nowait(None)
        await running

    asyncio.run(talk())


@pytest.mark.parametrize("blocked", [False, True])
def test_a_message_that_cannot_be_sent_ends_it(blocked: bool) -> None:
    async def talk() -> None:
        stream = ByHand()
        talks = Conversation(stream, lambda message: None)
        running = asyncio.ensure_future(talks.run())
        await settled()
        if blocked:
            stream.blocked.clear()
            talks.tell(MapChanged(1))
            await settled()
        talks.tell(unsendable())
        stream.blocked.set()
        await asyncio.wait_for(running, 5)
        assert (talks.malformed, talks.orderly) == (False, False)
        assert "a Delivery cannot be sent" in talks.why

    asyncio.run(talk())


def unsendable() -> Delivery:
    made = delivery([1])
    return Delivery(msgspec.structs.replace(made.bundle, keys=["\ud800"]), made.sequencer, False)


def test_whoever_fails_to_take_a_message_ends_it() -> None:
    def hear(message: Message) -> None:
        raise KeyError("no such interval")

    async def talk() -> None:
        stream = ByHand()
        talks = Conversation(stream, hear)
        stream.comes.put_nowait(frame_of([MapChanged(1)]))
        await asyncio.wait_for(talks.run(), 5)
        assert talks.why == "a message was not taken: KeyError('no such interval')"

    asyncio.run(talk())


def test_a_stream_that_breaks_has_not_ended_in_order() -> None:
    async def talk() -> None:
        stream = ByHand()
        talks = Conversation(stream, lambda message: None)
        stream.comes.put_nowait(StreamBroken("the connection was lost"))
        await asyncio.wait_for(talks.run(), 5)
        assert (talks.why, talks.orderly, talks.malformed) == ("the connection was lost", False, False)

    asyncio.run(talk())


def test_a_stream_that_is_cancelled_has_ended() -> None:
    async def talk() -> None:
        talks = Conversation(ByHand(), lambda message: None)
        running = asyncio.ensure_future(talks.run())
        await settled()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await asyncio.wait_for(talks.ended(), 5)
        assert (talks.why, talks.orderly) == ("the stream was cancelled", False)

    asyncio.run(talk())


def test_a_frame_that_is_none_ends_it() -> None:
    async def talk() -> None:
        stream = ByHand()
        talks = Conversation(stream, lambda message: None)
        stream.comes.put_nowait(b"\xff\xff")
        await talks.run()
        assert talks.malformed
        assert "are no frame" in talks.why

    asyncio.run(talk())
