"""What hosts tell each other: each message is known to whoever hears it, and is a value."""

from __future__ import annotations

import inspect
from typing import get_args

import msgspec
import pytest

from millwheel.host import messages
from millwheel.host.messages import Claimed, IntervalLoad, Message, RunEnded, WatermarkReport
from millwheel.ids import IntervalId, Sequencer

MADE = [
    value
    for _, value in inspect.getmembers(messages, inspect.isclass)
    if value.__module__ == messages.__name__ and issubclass(value, msgspec.Struct)
]
PARTS = {IntervalLoad}
"""What messages are made of."""


def test_every_message_is_one_that_a_host_must_handle() -> None:
    assert {*get_args(Message)} == {*MADE} - PARTS


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_a_message_is_a_value_that_the_collector_need_not_look_at(kind: type[msgspec.Struct]) -> None:
    settings = kind.__struct_config__
    assert settings.frozen
    assert settings.eq
    assert not settings.gc or not kind.__struct_fields__, "messages are many, and have no cycles"


def test_messages_with_the_same_content_are_the_same_and_other_kinds_are_not() -> None:
    report = WatermarkReport("c", IntervalId(1), 5, Sequencer(7))
    assert report == WatermarkReport("c", IntervalId(1), 5, Sequencer(7), 0)
    assert report != WatermarkReport("c", IntervalId(1), 5, Sequencer(8))
    assert RunEnded() == RunEnded()
    said: list[Message] = [Claimed(()), RunEnded()]
    assert said[0] != said[1]
