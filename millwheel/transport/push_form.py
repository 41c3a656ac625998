"""Pushed records as bytes, and back (proto/push.proto).

Lives here: what is checked of a message from outside.  Never here: sockets.  What is wrong raises `WireError`.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

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


def reply_of(data: bytes) -> pb.PushReply:
    """What a source says."""
    try:
        return pb.PushReply.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are no reply of a source: {error}") from error
