"""Frames of data are taken out of what comes, and all else is left as it was, however it is cut on the way."""

from __future__ import annotations

import random
import struct

import pytest

from millwheel import limits
from millwheel.transport.data_frames import OF_H2, FrameCutter, data_frame, room_given

PREAMBLE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PLAIN = {1, 3}


def frame(kind: int, flags: int, number: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", number) + body


def some_frame(draw: random.Random) -> bytes:
    body = draw.randbytes(draw.choice([0, 1, 8, 300]))
    number = draw.choice([0, 1, 3, 5])
    return draw.choice(
        [
            data_frame(number, body),
            data_frame(1, body),
            frame(0, draw.choice([1, 8]), number, body),  # the last one, or with padding
            frame(1, draw.choice([0, 4, 5]), number, body),
            frame(9, draw.choice([0, 4]), number, body),
            room_given(number, 7),
        ]
    )


def cut(cutter: FrameCutter, pieces: list[bytes]) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for piece in pieces:
        for number, data in cutter.cut(piece, PLAIN.__contains__):
            if number == OF_H2 and found and found[-1][0] == OF_H2:
                found[-1] = (OF_H2, found[-1][1] + data)
            else:
                found.append((number, data))
    return found


def in_pieces(draw: random.Random, whole: bytes) -> list[bytes]:
    ends = sorted(draw.choices(range(len(whole) + 1), k=draw.choice([0, 1, 30, len(whole)])))
    return [whole[low:high] for low, high in zip([0, *ends], [*ends, len(whole)], strict=True)]


@pytest.mark.parametrize("seed", range(300))
def test_nothing_is_lost_or_put_in_another_order(seed: int) -> None:
    draw = random.Random(seed)
    called = draw.random() < 0.5
    frames = [some_frame(draw) for _ in range(draw.randrange(12))]
    whole = (PREAMBLE if called else b"") + b"".join(frames)
    found = cut(FrameCutter(called), in_pieces(draw, whole))
    assert b"".join(data if number == OF_H2 else data_frame(number, data) for number, data in found) == whole
    assert found == cut(FrameCutter(called), [whole])


@pytest.mark.parametrize("seed", range(100))
def test_what_is_taken_out_is_data_and_nothing_within_headers(seed: int) -> None:
    draw = random.Random(seed)
    frames = [some_frame(draw) for _ in range(12)]
    expected, within = [], False
    for one in frames:
        kind, flags, number = one[3], one[4], struct.unpack(">I", one[5:9])[0]
        if kind == 0 and flags == 0 and not within and number in PLAIN:
            expected.append((number, one[9:]))
        elif kind in (1, 9):
            within = not flags & 4
    found = cut(FrameCutter(called=False), in_pieces(draw, b"".join(frames)))
    assert [part for part in found if part[0] != OF_H2] == expected


def test_the_rest_of_a_frame_is_not_taken_out() -> None:
    cutter = FrameCutter(called=False)
    assert cut(cutter, [data_frame(1, b"abc")[:-1]]) == []
    assert cut(cutter, [b"c"]) == [(1, b"abc")]


def test_after_a_frame_that_is_too_long_all_is_given_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_FRAME_BYTES", 10)
    cutter = FrameCutter(called=False)
    long, after = data_frame(1, bytes(11)), data_frame(1, b"abc")
    assert cut(cutter, [data_frame(1, bytes(10)) + long[:9]]) == [(1, bytes(10)), (OF_H2, long[:9])]
    assert cut(cutter, [long[9:] + after]) == [(OF_H2, long[9:] + after)]
