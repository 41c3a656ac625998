"""gRPC's streams over HTTP/2, in the event loop and nowhere else.

Lives here: one connection, and how gRPC lays its streams and their status on it (PROTOCOL-HTTP2.md of gRPC).  Never here: who
may call, what a frame means, or when to call again.  HTTP/2 itself is h2's, but for frames of data (`data_frames`).
Invariant: a message passes from the socket to its reader within one turn of the event loop, and no thread is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, cast
from urllib.parse import quote, unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes

from millwheel import limits
from millwheel.errors import InvariantError
from millwheel.transport.conversations import StreamBroken
from millwheel.transport.data_frames import OF_H2, FrameCutter, data_frame, room_given
from millwheel.transport.grpc_streams import Handler, Http2Stream, StreamRefused, StreamStatus

_TYPE: Final = ("content-type", "application/grpc")


logger = logging.getLogger("millwheel")


class Http2Connection(asyncio.Protocol):
    """One connection.  With `handlers`, by path, it is the end that is called."""

    def __init__(self, connections: set[Http2Connection], handlers: Mapping[str, Handler] | None = None) -> None:
        """It is among `connections` while it is open."""
        self._handlers = handlers
        self._connections = connections
        self._streams: dict[int, Http2Stream] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._waiting: list[asyncio.Future[None]] = []
        """Writers for whom there was no room."""
        self._idle: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self.peer = ""
        self.lost = ""
        """Why the connection is no more, or ""."""
        self._h2 = H2Connection(H2Configuration(client_side=handlers is None, header_encoding="latin-1"))
        # From the start: h2 would take the first longer frame for a mistake when it comes together with the consent.
        self._h2.max_inbound_frame_size = limits.HTTP2_FRAME_BYTES
        self._cutter = FrameCutter(called=handlers is not None)

    # --- the interface of asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=2 * limits.CHANNEL_FRAME_BYTES)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        if self._handlers is not None and len(self._connections) >= limits.HTTP2_CONNECTIONS_LIMIT:
            self._transport.abort()
            return
        self._connections.add(self)
        self._h2.initiate_connection()
        self._h2.update_settings(_settings())
        self._h2.increment_flow_control_window(limits.HTTP2_STREAMS_LIMIT * limits.HTTP2_WINDOW_BYTES)
        self._flush()
        self._look_if_idle()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            for number, part in self._cutter.cut(data, self._is_plain):
                if number == OF_H2:
                    for event in self._h2.receive_data(part):
                        self._happened(event)
                    self._flush()
                else:
                    self._came(self._streams[number], part)
        except H2Error as error:
            self._flush()
            self._end(f"what came is no HTTP/2: {error or type(error).__name__}")
            return
        # Answers to questions are not held back by any window.
        if self._paused and self._unsent_bytes() > limits.HTTP2_UNSENT_LIMIT_BYTES:
            self._end("the other end asks and does not read", abort=True)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._paused = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._paused = False
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.lost = self.lost or ("the connection was lost" + (f": {exc}" if exc else ""))
        self._transport = None
        self._connections.discard(self)
        self._gone.set()
        if self._idle is not None:
            self._idle.cancel()
        for stream in [*self._streams.values()]:
            stream.over(self.lost)
        self._streams.clear()
        self.wake()

    # --- for streams ------------------------------------------------------------------------------------------------

    def certificate(self) -> bytes | None:
        """The certificate of the other end, DER; None: it has none."""
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        return None if tls is None else tls.getpeercert(True)

    def has(self, stream: Http2Stream) -> bool:
        """The stream has not ended."""
        return self._streams.get(stream.number) is stream

    def room(self, number: int) -> int:
        """How many bytes a stream may send now."""
        if self._paused:
            return 0
        return min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)

    async def more_room(self) -> None:
        """Wait until there may be more."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def send(self, stream: Http2Stream, data: bytes) -> None:
        """Send a piece of a frame, for which there is room."""
        if self._handlers is not None and not stream.answered:
            stream.answered = True
            self._h2.send_headers(stream.number, [(":status", "200"), _TYPE])
            self._flush()
        account = self._h2.streams[stream.number]  # of what may be sent, which h2 keeps
        self._h2.outbound_flow_control_window -= len(data)
        account.outbound_flow_control_window -= len(data)
        if self._transport is None or stream.finished or account.outbound_flow_control_window < 0:
            raise InvariantError("data is sent for which there is no room, or on a stream that has ended")
        self._transport.write(data_frame(stream.number, data))

    def was_read(self, stream: Http2Stream, size: int) -> None:
        """The other end may send so much more."""
        stream.owed_bytes += size
        if stream.owed_bytes >= limits.HTTP2_WINDOW_BYTES // 4 and self.has(stream):
            self._give_back(stream, stream.owed_bytes)
            stream.owed_bytes = 0

    def finish(self, stream: Http2Stream) -> bool:
        """The calling end says that it is done; the called one ends a stream with its status, when its handler returns."""
        if self._handlers is not None:
            return False
        if stream.number in self._streams:
            stream.finished = True
            self._h2.end_stream(stream.number)
            self._flush()
        return True

    def reset(self, stream: Http2Stream, code: ErrorCodes, why: str = "it was cancelled here") -> None:
        """End a stream in disorder; nothing when it has ended."""
        if self._forget(stream):
            self._abandon(stream.number, code)
        stream.over(why)

    async def gone(self) -> None:
        """Wait until it is closed, for `CHANNEL_CLOSE_LIMIT_S`, and then abort it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.CHANNEL_CLOSE_LIMIT_S):
                await self._gone.wait()
        if self._transport is not None:
            self._transport.abort()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Handlers that run."""
        return [*self._tasks.values()]

    # --- the end that calls -----------------------------------------------------------------------------------------

    def call(self, path: str, authority: str) -> Http2Stream:
        """Open a stream.  Raises `StreamBroken` when the connection is no more."""
        if self._transport is None or self.lost:
            raise StreamBroken(self.lost)
        scheme = "http" if self._transport.get_extra_info("ssl_object") is None else "https"
        number = self._h2.get_next_available_stream_id()
        stream = self._streams[number] = Http2Stream(self, number)
        names = [(":method", "POST"), (":scheme", scheme), (":path", path), (":authority", authority)]
        self._h2.send_headers(number, [*names, ("te", "trailers"), _TYPE])
        self._flush()
        return stream

    def close(self) -> None:
        """Say that nothing more comes, and end once that is out."""
        if not self.lost and self._transport is not None:
            self._h2.close_connection()
            self._flush()
        self._end("this process has closed the connection")

    # --- the end that is called -------------------------------------------------------------------------------------

    def _asked(self, number: int, headers: Mapping[str, str]) -> None:
        stream = self._streams[number] = Http2Stream(self, number)
        stream.plain = "content-length" not in headers  # h2 compares it with what comes
        handler = (self._handlers or {}).get(headers.get(":path", ""))
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith(_TYPE[1]):
            with suppress(H2Error):
                self._h2.send_headers(number, [(":status", "415")], end_stream=True)
            self.reset(stream, ErrorCodes.NO_ERROR)
        elif handler is None:
            self._conclude(stream, StreamStatus.UNIMPLEMENTED, f"nobody serves {headers.get(':path')!r:.80}")
        else:
            self._tasks[number] = asyncio.ensure_future(self._serve(stream, handler))

    async def _serve(self, stream: Http2Stream, handler: Handler) -> None:
        try:
            await handler(stream)
            status, why = StreamStatus.OK, ""
        except StreamRefused as refused:
            status, why = refused.status, str(refused)
        except Exception:
            logger.exception("a stream from %s failed", stream.peer)
            status, why = StreamStatus.INTERNAL, "its handler failed"
        except asyncio.CancelledError:
            self._conclude(stream, StreamStatus.UNAVAILABLE, "this process ends")
            raise
        finally:
            self._tasks.pop(stream.number, None)
        self._conclude(stream, status, why)

    def _conclude(self, stream: Http2Stream, status: StreamStatus, why: str) -> None:
        """End a stream with a status."""
        ended = stream.broken or stream.ended
        if not self._forget(stream):
            return
        first = [] if stream.answered else [(":status", "200"), _TYPE]
        last = [("grpc-status", str(int(status))), ("grpc-message", quote(why.strip(), safe=" !#$&'()*+,/:;=?@[]"))]
        with suppress(H2Error):  # the other end has broken it, and its event comes next
            self._h2.send_headers(stream.number, [*first, *last], end_stream=True)
        self._flush()
        if not ended:
            # A caller that is still writing would take a reset for the end, and never read the status.
            asyncio.get_running_loop().call_later(limits.HTTP2_LINGER_S, self._abandon, stream.number)
        stream.over(why or "this end has ended it")

    def _abandon(self, number: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Break a stream; nothing when the other end has done so, or both have ended it."""
        with suppress(H2Error):
            self._h2.reset_stream(number, code)
        self._flush()

    # --- both ends ----------------------------------------------------------------------------------------------------

    def _is_plain(self, number: int) -> bool:
        """Whether h2 need not see data of a stream: nothing can be wrong with it but that it is too much."""
        stream = self._streams.get(number)
        return stream is not None and stream.plain and not stream.ended

    def _came(self, stream: Http2Stream, data: bytes) -> None:
        """Data has come past h2."""
        if stream.plain_bytes + len(data) > self._h2.remote_flow_control_window(stream.number):
            self._h2.close_connection(ErrorCodes.FLOW_CONTROL_ERROR)
            self._flush()
            self._end("what came is no HTTP/2: there was no room for it")
            return
        stream.plain_bytes += len(data)
        self._read_by(stream, data)

    def _read_by(self, stream: Http2Stream, data: bytes) -> None:
        try:
            stream.came(data)
        except StreamRefused as refused:
            self._refuse(stream, refused)

    def _give_back(self, stream: Http2Stream, size: int) -> None:
        """The other end may send so much more on the connection, and on the stream unless that is forgotten."""
        plain = min(size, stream.plain_bytes)
        stream.plain_bytes -= plain
        if plain and self._transport is not None:
            on_stream = room_given(stream.number, plain) if self.has(stream) else b""
            self._transport.write(room_given(0, plain) + on_stream)
        if size > plain:
            self._h2.acknowledge_received_data(size - plain, stream.number)
            self._flush()

    def _happened(self, event: Event) -> None:
        match event:
            case DataReceived(stream_id=number, data=data, flow_controlled_length=length):
                stream = self._streams.get(number or 0)
                if stream is None or data is None:
                    self._h2.acknowledge_received_data(length or 0, number or 0)
                    return
                if length != len(data):  # padding is read by nobody
                    self._h2.acknowledge_received_data((length or 0) - len(data), stream.number)
                self._read_by(stream, data)
            case RequestReceived(stream_id=number, headers=headers) if self._handlers is not None:
                self._asked(number or 0, _named(headers))
            case (
                ResponseReceived(stream_id=number, headers=headers)
                | TrailersReceived(stream_id=number, headers=headers)
            ):
                stream, named = self._streams.get(number or 0), _named(headers)
                if stream is None:
                    return
                stream.plain = "content-length" not in named
                if named.get(":status", "200") != "200":
                    stream.over(f"it was answered with the HTTP status {named[':status']}")
                elif (status := named.get("grpc-status", "0")) != "0":
                    stream.over(f"{unquote(named.get('grpc-message', '')) or 'it broke'} ({_name_of(status)})")
            case StreamEnded(stream_id=number):
                stream = self._streams.get(number or 0)
                if stream is not None:
                    stream.over()
                    if self._handlers is None:  # its status is there, and whoever still writes is told
                        self._abandon(stream.number)
                        self._forget(stream)
            case StreamReset(stream_id=number, error_code=code):
                stream = self._streams.get(number or 0)
                if stream is not None:
                    stream.over(
                        ""
                        if code == ErrorCodes.NO_ERROR and stream.ended
                        else f"the other end has broken it ({_code(code)})"
                    )
                    self._forget(stream)
                    self.wake()
            case ConnectionTerminated(error_code=code):
                self._end(f"the other end has closed the connection ({_code(code)})")
            case WindowUpdated() | RemoteSettingsChanged():
                self.wake()

    def _refuse(self, stream: Http2Stream, refused: StreamRefused) -> None:
        if self._handlers is None:
            self.reset(stream, ErrorCodes.CANCEL, str(refused))
        else:
            self._conclude(stream, refused.status, str(refused))

    def _forget(self, stream: Http2Stream) -> bool:
        """What is unread does not hold back the connection any more; False when the stream has ended before."""
        if self._streams.pop(stream.number, None) is None or self._transport is None:
            return False
        self._give_back(stream, stream.held_bytes())
        return True

    def _end(self, why: str, *, abort: bool = False) -> None:
        """Close the connection; what was written before goes out, unless it is aborted."""
        self.lost = self.lost or why
        for stream in [*self._streams.values()]:
            stream.over(self.lost)
        self._streams.clear()
        self.wake()
        if self._transport is not None:
            if abort:
                self._transport.abort()
            else:
                self._transport.close()
                # What is written to an end that does not read would keep the connection for ever.
                asyncio.get_running_loop().call_later(limits.CHANNEL_CLOSE_LIMIT_S, self._transport.abort)

    def _look_if_idle(self) -> None:
        """A connection without a stream is closed after `CHANNEL_IDLE_PING_S`; streams look after themselves."""
        if self._handlers is None:
            return
        self._idle = asyncio.get_running_loop().call_later(limits.CHANNEL_IDLE_PING_S, self._idled)

    def _idled(self) -> None:
        if self._streams:
            self._look_if_idle()
        else:
            self.close()

    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def wake(self) -> None:
        """Writers look again."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


def _settings() -> dict[SettingCodes | int, int]:
    """What the other end may do.  Limits are read late: tests change them."""
    return {
        SettingCodes.INITIAL_WINDOW_SIZE: limits.HTTP2_WINDOW_BYTES,
        SettingCodes.MAX_FRAME_SIZE: limits.HTTP2_FRAME_BYTES,
        SettingCodes.MAX_HEADER_LIST_SIZE: limits.HTTP2_HEADERS_LIMIT_BYTES,
        SettingCodes.MAX_CONCURRENT_STREAMS: limits.HTTP2_STREAMS_LIMIT,
    }


def _named(headers: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers or ()}


def _name_of(status: str) -> str:
    try:
        return StreamStatus(int(status)).name
    except ValueError:
        return f"status {status:.20}"


def _code(code: ErrorCodes | int | None) -> str:
    return code.name if isinstance(code, ErrorCodes) else str(code)
