"""Pushes records from a program outside of the cluster, and keeps each until it is durable.

Lives here: the window of a client, and streams one after the other.  Never here: threads.  Invariants:

* a record is sent again, with the same id, until the source says that it is durable or refused;
* records that are sent again come before those that were not sent yet, in the order of `push`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
import msgspec

from millwheel import limits
from millwheel.errors import (
    ChannelError,
    LimitError,
    PushError,
    PushRefused,
    TimestampError,
    WireError,
    WiringError,
)
from millwheel.model import MAX_TIME, MIN_TIME, Time, to_us
from millwheel.transport.addresses import host_and_port, is_loopback
from millwheel.transport.grpc_credentials import caller_credentials
from millwheel.transport.proto import push_pb2 as pb
from millwheel.transport.push_form import PUSH_VERSION, reply_of
from millwheel.transport.roles import PUSH
from millwheel.wording import counted

if TYPE_CHECKING:
    from millwheel.transport.certificates import Certificates

_OPTIONS: Final = (
    ("grpc.max_send_message_length", limits.PUSH_MESSAGE_LIMIT_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
)

_FINAL: Final = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""Answers that would be the same at every try."""

logger = logging.getLogger("millwheel")


class _Pending(msgspec.Struct, gc=False):
    """A record that is not known to be durable."""

    id: bytes
    value: bytes
    timestamp: int
    sent_at: float | None = None
    """When it was first sent, by the loop's clock, s."""
    refusal: str = ""
    """Why the source refuses it."""

    @property
    def size(self) -> int:
        return len(self.value) + len(self.id) + limits.RECORD_OVERHEAD_BYTES


class AsyncPusher:
    """A client of one stream: `async with AsyncPusher("host:7100", "orders") as pusher: await pusher.push(id, value, time)`.

    `addresses` is one host:port, or several of which one serves the stream at a time.  `certificates` is a directory of
    `millwheel certs` and a name in it.  Leaving the block in order waits until everything is durable.  Methods raise
    `PushError` when the source has refused this client, or when nothing has become durable for `patience_s`.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        stream: str,
        *,
        certificates: tuple[str, str] | None = None,
        patience_s: float = limits.PUSH_PATIENCE_S,
    ) -> None:
        self._addresses = _checked_addresses(addresses)
        if not isinstance(stream, str):
            raise WiringError(f"stream={stream!r:.80}: give the name of the stream, for example 'orders'")
        if not isinstance(patience_s, int | float) or not patience_s > 0:
            raise WiringError(f"patience_s={patience_s!r:.80}: give seconds, more than 0")
        if certificates is not None and (not isinstance(certificates, tuple | list) or len(certificates) != 2):
            raise WiringError(
                f"certificates={certificates!r:.80}: give (directory, name), for example ('certs', 'client')"
            )
        self._stream = stream
        self._certificates = None if certificates is None else _read(*certificates)
        self._patience_s = patience_s
        for address in self._addresses:
            host, _ = host_and_port(address)
            if self._certificates is None and not is_loopback(host):
                raise ChannelError(f"{address} is on another machine: give this client a certificate (millwheel certs)")
        self._sent: deque[_Pending] = deque()
        """On the stream that is open, or was open last."""
        self._unsent: deque[_Pending] = deque()
        self._held_bytes = 0
        self._refused: list[tuple[bytes, str]] = []
        self._changed = asyncio.Condition()
        self._news = asyncio.Event()
        """There is something to send."""
        self._task: asyncio.Task[None] | None = None
        self._failure: PushError | None = None
        self._moved_at = 0.0
        """When something last became durable, or was pushed while nothing waited."""
        self._slack_s: float | None = None

    async def __aenter__(self) -> AsyncPusher:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            if self._task is not None:
                task, self._task = self._task, None
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def push(self, id: str | bytes, value: bytes, time: Time) -> None:
        """One record, as the coder of the stream writes it, with its event time; see `push_many`."""
        await self.push_many([(id, value, time)])

    async def push_many(self, records: Iterable[tuple[str | bytes, bytes, Time]]) -> None:
        """Records of (id, value, event time).  Waits only while too many are not durable yet (`PUSH_WINDOW_RECORDS`).

        The id must be the same when the record is pushed again, by this program or by one that was started in its place.
        Raises `LimitError` and `TimestampError` for a record that no source would take.
        """
        for id_, value, time in records:
            pending = _Pending(_checked_id(id_), _checked_value(value), _checked_time(time))
            if self._full():
                async with self._changed:
                    await self._changed.wait_for(lambda: self._failure is not None or not self._full())
            self._check()
            if not (self._sent or self._unsent):
                self._moved_at = asyncio.get_running_loop().time()
            self._unsent.append(pending)
            self._held_bytes += pending.size
            self._news.set()

    async def flush(self) -> None:
        """Wait until everything that was pushed is durable.  Raises `PushRefused` for what the source has refused since."""
        self._check()
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure is not None or not (self._sent or self._unsent))
        self._check()
        if self._refused:
            refused, self._refused = self._refused, []
            id_, reason = refused[0]
            raise PushRefused(
                f"{counted(len(refused), 'record was', 'records were')} refused; the first, {id_!r}: {reason}", refused
            )

    def _full(self) -> bool:
        held = len(self._sent) + len(self._unsent)
        return held >= limits.PUSH_WINDOW_RECORDS or self._held_bytes >= limits.PUSH_WINDOW_BYTES

    def _check(self) -> None:
        if self._task is None:
            raise PushError("a pusher is used within its block: async with AsyncPusher(...) as pusher")
        if self._failure is not None:
            raise self._failure

    async def _fail(self, error: PushError) -> None:
        async with self._changed:
            self._failure = error
            self._changed.notify_all()

    # --- streams, one after the other ----------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._moved_at, delay_s, said, turn = loop.time(), 0.0, "", 0
        try:
            while True:
                began, address = loop.time(), self._addresses[turn % len(self._addresses)]
                code, why = await self._once(address)
                if why != said:
                    said = why
                    logger.warning(
                        "pushing to %s: %s; %d records wait", address, why, len(self._sent) + len(self._unsent)
                    )
                if code in _FINAL:
                    raise PushError(f"{address} takes no records of {self._stream!r} from this client: {why}")
                self._give_up_in_time(why)
                delay_s = 0.0 if loop.time() - began > limits.DIAL_STEADY_S else delay_s
                delay_s = min(max(2 * delay_s, limits.DIAL_FIRST_DELAY_S), limits.DIAL_LONGEST_DELAY_S)
                turn += 1
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
        except PushError as error:
            await self._fail(error)
        except Exception as error:
            logger.exception("pushing failed")
            await self._fail(PushError(f"pushing failed: {error!r}"))

    def _give_up_in_time(self, why: str) -> None:
        now, waiting = asyncio.get_running_loop().time(), len(self._sent) + len(self._unsent)
        if waiting and now - self._moved_at > self._patience_s:
            raise PushError(
                f"nothing has become durable for {self._patience_s:.0f} s, the last time because of: {why}; {waiting} "
                "records may or may not have been taken: push them again, with the same ids"
            )
        for oldest in (*islice(self._sent, 1), *islice(self._unsent, 1)):
            self._check_age(oldest, now)

    def _check_age(self, pending: _Pending, now: float) -> None:
        """Raise `PushError` if the id of a record that was sent may be forgotten at time `now`."""
        sent_at = pending.sent_at
        if self._slack_s is not None and sent_at is not None and now - sent_at > self._slack_s:
            raise PushError(
                f"a record was first sent {now - sent_at:.0f} s ago, longer than the source remembers ids (id_slack): it may "
                "have been taken, and would count twice if it were sent again"
            )

    async def _once(self, address: str) -> tuple[grpc.StatusCode | None, str]:
        """One stream, until it ends; how it did."""
        channel = (
            grpc.aio.insecure_channel(address, options=_OPTIONS)
            if self._certificates is None
            else grpc.aio.secure_channel(address, caller_credentials(self._certificates), options=_OPTIONS)
        )
        async with channel:
            method: Any = channel.stream_stream(PUSH)
            call = method()
            # What the last stream has not been answered for comes first.
            self._unsent.extendleft(reversed(self._sent))
            self._sent.clear()
            alive = _Signs()
            parts = (self._hear(call, alive), self._send(call), self._watch(alive))
            tasks = [asyncio.ensure_future(part) for part in parts]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if alive.why:
                    return None, alive.why
                failures = [task.exception() for task in tasks if task.done()]
                for failure in failures:
                    if isinstance(failure, WireError):
                        return None, str(failure)
                    if not isinstance(failure, grpc.aio.AioRpcError | asyncio.InvalidStateError | None):
                        raise failure
                return await call.code(), await call.details() or "the stream has ended"
            finally:
                call.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, alive: _Signs) -> None:
        """Until the other end has been silent for too long, or nothing has become durable for too long."""
        silent = 0
        while silent < limits.CHANNEL_SILENT_BEATS:
            await asyncio.sleep(limits.CHANNEL_BEAT_S)
            silent = 0 if alive.seen else silent + 1
            alive.seen = False
            idle_s = asyncio.get_running_loop().time() - self._moved_at
            if (self._sent or self._unsent) and idle_s > self._patience_s:
                alive.why = "the source takes nothing"
                return
        alive.why = f"nothing came for {limits.CHANNEL_SILENT_BEATS * limits.CHANNEL_BEAT_S:.0f} s"

    async def _hear(self, call: Any, alive: _Signs) -> None:
        kept, first = 0, True
        while (data := await call.read()) is not grpc.aio.EOF:
            alive.seen = True
            reply = reply_of(data)
            if first:  # a source that remembers no id says so, too: that is 0
                self._slack_s, first = reply.id_slack_us / 1e6, False
            for refusal in reply.refused:
                at = refusal.number - kept
                if not 0 <= at < len(self._sent):
                    raise WireError(f"record {refusal.number} is refused, and is none of those that wait")
                self._sent[at].refusal = refusal.reason or "it gives no reason"
            done = reply.kept - kept
            if not 0 <= done <= len(self._sent):
                raise WireError(f"{reply.kept} records are durable, of {kept + len(self._sent)} that were sent")
            if done:
                kept = reply.kept
                self._moved_at = asyncio.get_running_loop().time()
                async with self._changed:
                    for _ in range(done):
                        self._done(self._sent.popleft())
                    self._changed.notify_all()

    def _done(self, pending: _Pending) -> None:
        self._held_bytes -= pending.size
        if pending.refusal:
            self._refused.append((pending.id, pending.refusal))

    async def _send(self, call: Any) -> None:
        opening = pb.Opening(version=PUSH_VERSION, stream=self._stream)
        await call.write(pb.PushRequest(opening=opening).SerializeToString())
        while True:
            if not self._unsent:
                self._news.clear()
                try:
                    async with asyncio.timeout(limits.CHANNEL_BEAT_S):
                        await self._news.wait()
                except TimeoutError:
                    await call.write(b"")
                continue
            await call.write(self._next().SerializeToString())

    def _next(self) -> pb.PushRequest:
        """As much of what waits as goes into one message."""
        now, batch, size = asyncio.get_running_loop().time(), list[_Pending](), 0
        while self._unsent and (not batch or size + self._unsent[0].size <= limits.PUSH_MESSAGE_BYTES):
            self._check_age(self._unsent[0], now)
            pending = self._unsent.popleft()
            pending.sent_at, pending.refusal = pending.sent_at or now, ""  # what an earlier stream said of it is over
            size += pending.size
            batch.append(pending)
        self._sent.extend(batch)
        return pb.PushRequest(
            ids=[pending.id for pending in batch],
            values=[pending.value for pending in batch],
            timestamps=[pending.timestamp for pending in batch],
        )


class _Signs:
    """Whether the other end shows that it is there."""

    def __init__(self) -> None:
        self.seen = True
        self.why = ""
        """Why this end gives the stream up."""


def _checked_addresses(given: object) -> list[str]:
    addresses = [given] if isinstance(given, str) else given
    if not isinstance(addresses, list | tuple) or not addresses or not all(isinstance(one, str) for one in addresses):
        raise WiringError(f"addresses={given!r:.80}: give host:port, such as 127.0.0.1:7100, or a list of them")
    return [*addresses]


def _checked_time(time: Time) -> int:
    us = to_us(time)
    if not MIN_TIME <= us <= MAX_TIME:
        raise TimestampError(f"{us} is no event time: it is out of range; give microseconds since 1970")
    return us


def _checked_id(id_: str | bytes) -> bytes:
    if not isinstance(id_, str | bytes):
        raise TypeError(f"an id is text or bytes, and not {type(id_).__name__}: {id_!r:.80}")
    data = id_.encode() if isinstance(id_, str) else id_
    if not 0 < len(data) <= limits.OUTSIDE_ID_LIMIT_BYTES:
        raise LimitError(f"an id has 1 to {limits.OUTSIDE_ID_LIMIT_BYTES} bytes, and this one {len(data)}")
    return data


def _checked_value(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a value is bytes, as the coder of the stream writes them, and not {type(value).__name__}")
    if len(value) > limits.VALUE_LIMIT_BYTES:
        raise LimitError(f"a value has at most {limits.VALUE_LIMIT_BYTES:,} bytes, and this one {len(value):,}")
    return value


def _read(directory: str, name: str) -> Certificates:
    try:
        from millwheel.transport.certificates import Certificates  # takes time that only who has some should pay
    except ModuleNotFoundError as error:
        raise ChannelError(f"{error.name} is missing: pip install 'millwheel-streams[cluster]'") from error
    return Certificates.read(directory, name)
