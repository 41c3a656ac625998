"""Pushed records as bytes, and back (proto/push.proto).

Lives here: what is checked of a message from outside.  Never here: sockets.  What is wrong raises `WireError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from millwheel import limits
from millwheel.errors import WireError
from millwheel.transport.proto import push_pb2 as pb
from millwheel.transport.push_queue import Pushed

PUSH_VERSION: Final = 1
"""Client and source must have the same (`Opening.version`)."""


def request_of(data: bytes) -> tuple[pb.Opening | None, Pushed]:
    """What a client says; the opening comes alone."""
    try:
        request = pb.PushRequest.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are no message of a client: {error}") from error
    pushed = Pushed(list(request.ids), list(request.values), list(request.timestamps))
    if not len(pushed.ids) == len(pushed.values) == len(pushed.timestamps):
        found = [len(column) for column in (pushed.ids, pushed.values, pushed.timestamps)]
        raise WireError(f"the columns of a message have {found} entries, and should all have the same number")
    if request.HasField("opening"):
        if pushed.ids:
            raise WireError("an opening comes alone")
        return request.opening, pushed
    return None, pushed


def replies(told: int, kept: int, refused: Sequence[tuple[int, str]]) -> Iterator[bytes]:
    """Replies that say that `kept` records are done, where `told` was said before, and which of them are refused.

    No reply is longer than a client takes, however many are refused and whatever their reasons say.
    """
    forms, size = list[pb.Refusal](), 0
    for number, reason in refused:
        forms.append(pb.Refusal(number=number, reason=_shown(reason)))
        size += forms[-1].ByteSize() + limits.RECORD_OVERHEAD_BYTES
        if size >= limits.PUSH_MESSAGE_BYTES:
            yield pb.PushReply(kept=told, refused=forms).SerializeToString()
            forms, size = [], 0
    yield pb.PushReply(kept=kept, refused=forms).SerializeToString()


def _shown(reason: str) -> str:
    """As much of it as one needs, and nothing that protobuf cannot carry."""
    cut = reason if len(reason) <= limits.PUSH_REASON_LIMIT else reason[: limits.PUSH_REASON_LIMIT] + "…"
    return cut.encode(errors="backslashreplace").decode()


def reply_of(data: bytes) -> pb.PushReply:
    """What a source says."""
    try:
        return pb.PushReply.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are no reply of a source: {error}") from error
