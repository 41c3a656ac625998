"""Lets clients push records into a queue, over gRPC.

Lives here: one stream for each client, from its opening to its end.  Never here: what becomes of records, which is the
queue's.  Invariant: a stream is not read while its client, or all of them together, have brought as much as they may.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
import grpc.aio

from millwheel import limits
from millwheel.errors import ChannelError, InvariantError, WireError
from millwheel.transport.addresses import host_and_port, is_loopback
from millwheel.transport.grpc_credentials import caller_role, server_credentials
from millwheel.transport.proto import push_pb2 as pb
from millwheel.transport.push_form import PUSH_VERSION, replies, request_of
from millwheel.transport.push_queue import PushAccount, PushQueue
from millwheel.transport.roles import MEMBERS, PUSH, may_call

if TYPE_CHECKING:
    from millwheel.transport.certificates import Certificates

_, SERVICE, METHOD = PUSH.split("/")

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", limits.PUSH_MESSAGE_LIMIT_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", int(1_000 * limits.CHANNEL_IDLE_PING_S)),
)

logger = logging.getLogger("millwheel")


class PushServer:
    """Clients of one stream.  Raises `ChannelError` for an address that is none, or that needs certificates."""

    def __init__(
        self, queue: PushQueue, stream: str, listen: str, *, id_slack_us: int, certificates: Certificates | None = None
    ) -> None:
        self._queue = queue
        self._stream = stream
        self._host, self._port = host_and_port(listen)
        self._id_slack_us = id_slack_us
        self._certificates = certificates
        self._streams = 0
        """Also those that have not said yet what they are."""
        if certificates is None and not is_loopback(self._host):
            raise ChannelError(
                f"{listen} can be reached from other machines, and nothing proves who pushes: listen on 127.0.0.1, or make "
                "certificates with millwheel certs"
            )
        if certificates is not None and certificates.role not in MEMBERS:
            raise ChannelError(f"the certificate of a {certificates.role} cannot listen: take a worker's")

    async def serve(self, ready: Callable[[str], None]) -> None:
        """Let clients in until this is cancelled; `ready` gets host:port.

        A port that is taken is waited for: the process that had the source before may be about to leave it.  After
        `PUSH_LISTEN_LIMIT_S`, `ChannelError` is raised.
        """
        began, said = asyncio.get_running_loop().time(), False
        while True:
            server = grpc.aio.server(options=_OPTIONS)
            handlers: dict[str, Any] = {METHOD: grpc.stream_stream_rpc_method_handler(self._push)}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
            try:
                port = self._bind(server)
                break
            except RuntimeError as error:
                taken = (
                    f"stream {self._stream}: nothing can listen on {self._host}:{self._port} for pushed records: is the port "
                    "taken?"
                )
                if asyncio.get_running_loop().time() - began > limits.PUSH_LISTEN_LIMIT_S:
                    raise ChannelError(taken) from error
            if not said:
                said = True
                logger.warning("%s trying for %.0f s", taken, limits.PUSH_LISTEN_LIMIT_S)
            await asyncio.sleep(limits.PUSH_LISTEN_DELAY_S)
        await server.start()
        try:
            ready(f"{self._host}:{port}")
            await asyncio.Event().wait()
        finally:
            await server.stop(None)

    def _bind(self, server: grpc.aio.Server) -> int:
        listen = f"{self._host}:{self._port}"
        if self._certificates is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, server_credentials(self._certificates))

    async def _push(self, _: Any, context: Any) -> None:
        if self._certificates is not None and not may_call(role := caller_role(context), PUSH):
            await _refuse(
                context, grpc.StatusCode.PERMISSION_DENIED, f"a certificate of the role {role} pushes nothing"
            )
        if self._streams >= limits.PUSH_CLIENTS_LIMIT:
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many clients (PUSH_CLIENTS_LIMIT)")
        self._streams += 1
        try:
            await self._converse(context)
        finally:
            self._streams -= 1

    async def _converse(self, context: Any) -> None:
        await self._opening(context)
        client = _Client(self._queue, context)
        try:
            await context.write(pb.PushReply(id_slack_us=self._id_slack_us).SerializeToString())
            await client.serve()
        except grpc.aio.BaseError as error:
            logger.debug("the stream of %s broke: %s", context.peer(), error)
            return
        finally:
            client.leave()
        if client.malformed:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, client.malformed)

    async def _opening(self, context: Any) -> None:
        opening = None
        try:
            async with asyncio.timeout(limits.CHANNEL_GREETING_LIMIT_S):
                data = await context.read()
            opening, _ = request_of(b"" if data is grpc.aio.EOF else data)
        except TimeoutError:
            await _refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, "no opening came (CHANNEL_GREETING_LIMIT_S)")
        except WireError as error:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if opening is None:
            await _refuse(
                context, grpc.StatusCode.INVALID_ARGUMENT, "a stream begins with an opening, and this does not"
            )
        if opening.version != PUSH_VERSION:
            why = f"the client speaks version {opening.version} and this source {PUSH_VERSION}: take the same release"
            await _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, why)
        if opening.stream != self._stream:
            why = f"the stream here is called {self._stream!r}, and not {opening.stream!r:.80}"
            await _refuse(context, grpc.StatusCode.NOT_FOUND, why)


class _Client:
    """One stream."""

    def __init__(self, queue: PushQueue, context: Any) -> None:
        self._queue = queue
        self._context = context
        self._news = asyncio.Event()
        self._account: PushAccount = queue.join(self._news.set)
        self._room = asyncio.Event()
        self._alive = True
        self._silent = 0
        self._said_all = False
        self.malformed = ""

    def leave(self) -> None:
        """Forget it."""
        self._queue.leave(self._account)

    async def serve(self) -> None:
        """Until the client ends its stream, breaks it, or is silent for too long."""
        reads = asyncio.ensure_future(self._read())
        tells = asyncio.ensure_future(self._tell())
        try:
            await asyncio.wait([reads, tells], return_when=asyncio.FIRST_COMPLETED)
            if reads.done() and not reads.exception() and not self.malformed:
                self._said_all = True  # it waits for the rest of the answers
                self._news.set()
                await tells
        finally:
            for task in (reads, tells):
                task.cancel()
            await asyncio.gather(reads, tells, return_exceptions=True)

    async def _read(self) -> None:
        """Take what comes, as long as there is room."""
        try:
            while (data := await self._context.read()) is not grpc.aio.EOF:
                self._alive = True
                opening, pushed = request_of(data)
                if opening is not None:
                    raise WireError("an opening comes in the middle of a stream")
                self._queue.put(self._account, pushed)
                while not self._queue.room(self._account):
                    self._room.clear()
                    await self._room.wait()
        except WireError as error:
            self.malformed = str(error)

    async def _tell(self) -> None:
        """Say what is done, at once, and that this end is there, every second."""
        account, told = self._account, 0
        last = asyncio.get_running_loop().time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.CHANNEL_BEAT_S):
                    await self._news.wait()
            self._news.clear()
            self._room.set()
            if account.kept > told or account.refused:
                before, told, refused, account.refused = told, account.kept, account.refused, []
                for reply in replies(before, told, refused):
                    await self._context.write(reply)
            if self._said_all and told == account.brought:
                return
            now = asyncio.get_running_loop().time()
            if now - last < limits.CHANNEL_BEAT_S:
                continue
            last = now
            await self._context.write(pb.PushReply(kept=told).SerializeToString())
            # While its quota is used up, nothing of it is read, and it cannot show that it is there.
            hushed = self._said_all or not self._queue.room(account)
            self._silent = 0 if self._alive or hushed else self._silent + 1
            self._alive = False
            if self._silent >= limits.CHANNEL_SILENT_BEATS:
                logger.warning("the client %s is silent: its stream is ended", self._context.peer())
                return


async def _refuse(context: Any, code: grpc.StatusCode, why: str) -> NoReturn:
    logger.warning("a client at %s was refused: %s", context.peer(), why)
    await context.abort(code, why)
    raise InvariantError("an aborted stream goes on")
