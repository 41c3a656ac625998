"""Records that programs outside of the cluster push, over gRPC.

Lives here: the source, which gives what clients have brought to the injector, and what it hears of them back to the
clients.  Never here: gRPC, which is in `millwheel.transport`.  Invariants:

* a client hears that a record is done only when it is durable at every receiver, or refused;
* no two records ever have one row number of one partition.  Each process has a partition of its own.  What an earlier process
  had read and not made durable, clients bring again, with the same ids.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Generic, NoReturn

from typing_extensions import TypeVar

from millwheel.api.stream import Stream
from millwheel.coders import Coder
from millwheel.errors import ChannelError, SourceError
from millwheel.limits import OUTSIDE_SLACK_US, READ_LIMIT_BYTES
from millwheel.model import MAX_TIME, MIN_TIME, SECOND
from millwheel.ports import Batch, Source, SourcePartition, SourcePosition
from millwheel.transport.addresses import host_and_port, is_loopback
from millwheel.transport.push_queue import PushQueue, Row
from millwheel_injectors.arguments import check_lengths_us
from millwheel_injectors.watermarks import BoundedDisorder, Gauge

T = TypeVar("T", default=Any)

logger = logging.getLogger("millwheel")

_STATE: Final = b"pushed"


class PushSource(Source[T]):
    """Lets clients push records of `stream`, each with an id of its own, and answers when they are durable.

    `millwheel.push` has the client.  `listen` is the host:port for clients.  `certificates` is a directory of
    `millwheel certs` and a name in it; without them only programs of this machine are let in.  Of records with one id, one is
    delivered within `id_slack`, us.  The watermark stays the bound of `watermark` behind the newest event time.
    `idle_after_us` is as for other sources.
    """

    kind = "pushed records"
    served = True
    announces = True

    def __init__(
        self,
        stream: Stream[T],
        listen: str,
        *,
        name: str | None = None,
        certificates: tuple[str | Path, str] | None = None,
        id_slack: int = OUTSIDE_SLACK_US,
        watermark: BoundedDisorder | None = None,
        idle_after_us: int | None = None,
    ) -> None:
        if not isinstance(stream, Stream):
            raise ValueError(
                f"PushSource needs a Stream, got {stream!r:.80}; for example Stream('orders', JsonCoder(dict))"
            )
        self.name = name or stream.name
        _check_listen(self.name, listen, certificates)
        check_lengths_us(self.name, id_slack=id_slack, idle_after_us=idle_after_us)
        if not id_slack:
            raise ValueError(
                f"source {self.name}: id_slack=0: clients bring again what got no answer, and it would count twice; give the "
                "time, us, for which ids are remembered"
            )
        if watermark is not None and not isinstance(watermark, BoundedDisorder):
            raise ValueError(f"source {self.name}: watermark={watermark!r:.80}: give BoundedDisorder(us), or nothing")
        self.record_id = _beside_the_value
        self.id_slack = id_slack
        self.idle_after_us = idle_after_us
        self._policy = watermark or BoundedDisorder(10 * SECOND)
        self.disorder_us = self._policy.bound_us
        self.stream: Final = stream.name
        self.coder: Final = stream.coder
        self.listen: Final = listen
        self.certificates: Final = certificates
        self.address = ""
        """host:port where clients are let in, once they are."""
        self._earlier: list[str] = []
        self._open: PushPartition[T] | None = None

    def recall(self, positions: Iterable[SourcePosition]) -> None:
        """What earlier processes had begun: nothing of it comes again by itself."""
        self._earlier = [position.partition for position in positions]

    def discover(self, known: Iterable[str]) -> list[SourcePartition[T]]:
        """The partition of this process, and the end of those of earlier ones."""
        have = set(known)
        found: list[SourcePartition[T]] = [EndedPush(name) for name in self._earlier if name not in have]
        if self._open is None or self._open.closed or self._open.name not in have:
            self._open = PushPartition(self, Gauge(self._policy))
            found.append(self._open)
        return found

    def complete(self) -> bool:
        """True while it is open."""
        return self._open is not None

    def pending_watermark(self) -> int:
        """Nothing appears later."""
        return MAX_TIME if self._open is not None else MIN_TIME

    def reject(self, partition: str, row: int, reason: str, value: Any) -> None:
        """The client that brought the row is told."""
        super().reject(partition, row, reason, value)
        if self._open is not None and self._open.name == partition:
            self._open.queue.refuse(row, reason)


class EndedPush(Generic[T]):
    """A partition of an earlier process: its clients have brought again what was not durable."""

    def __init__(self, name: str) -> None:
        self.name = name

    def fingerprint(self) -> bytes:
        """As that of any other."""
        return _STATE

    def resume(self, position: int, state: bytes) -> None:
        """Nothing is left."""

    def read(self, limit: int) -> Batch[T] | None:
        """Nothing."""
        return None

    def finished(self) -> bool:
        """True."""
        return True

    def watermark(self) -> int:
        """It holds nothing."""
        return MAX_TIME

    def close(self) -> None:
        """Nothing to release."""


class PushPartition(Generic[T]):
    """What the clients of one process bring."""

    def __init__(self, source: PushSource[T], gauge: Gauge) -> None:
        self.name: str = f"pushed-{secrets.token_hex(8)}"
        self.queue: Final = PushQueue()
        self.closed = False
        self._source = source
        self._coder: Coder[T] = source.coder
        self._gauge = gauge
        self._next_row = 0

    def fingerprint(self) -> bytes:
        """It has no state: another process does not go on with it."""
        return _STATE

    def resume(self, position: int, state: bytes) -> None:
        """It begins; raises `SourceError` when it has begun already."""
        if position != self._next_row:
            raise SourceError(
                f"source {self._source.name}: what clients have pushed cannot be read again from here; run again, and they "
                "push it again"
            )

    def announce_to(self, wake: Callable[[], None]) -> None:
        """Clients have brought something."""
        self.queue.wake = wake

    def read(self, limit: int) -> Batch[T] | None:
        """What clients have brought, in the order in which it came."""
        rows = self.queue.read(limit, READ_LIMIT_BYTES)
        if not rows:
            return None
        self._next_row = rows[-1].row + 1
        good, values = self._decoded(rows)
        times = [row.timestamp for row in good]
        self._gauge.saw(time for time in times if MIN_TIME < time < MAX_TIME)
        ids = [row.id for row in good]
        rejected = len(rows) - len(good)
        return Batch([row.row for row in good], values, times, self._next_row, _STATE, rejected, outside=ids)

    def _decoded(self, rows: list[Row]) -> tuple[list[Row], list[T]]:
        decode = self._coder.decode
        try:
            return rows, [decode(row.value) for row in rows]
        except Exception:  # some row is at fault: find out which
            good, values = [], []
        for row in rows:
            try:
                values.append(decode(row.value))
            except Exception as error:
                self._source.reject(self.name, row.row, f"{type(error).__name__}: {error}", row.value)
            else:
                good.append(row)
        return good, values

    def finished(self) -> bool:
        """Never: clients may come at any time."""
        return False

    def watermark(self) -> int:
        """The policy's promise."""
        return self._gauge.value(self._next_row)

    def close(self) -> None:
        """This process does not go on with it."""
        self.closed = True

    async def serve(self) -> None:
        """Let clients in until this is cancelled; raises `ChannelError`."""
        try:
            from millwheel.transport.certificates import Certificates
            from millwheel.transport.push_server import PushServer
        except ModuleNotFoundError as error:
            raise ChannelError(f"{error.name} is missing: pip install 'millwheel-streams[cluster]'") from error
        source = self._source
        certificates = None if source.certificates is None else Certificates.read(*source.certificates)
        server = PushServer(
            self.queue, source.stream, source.listen, id_slack_us=source.id_slack, certificates=certificates
        )
        await server.serve(self._ready)

    def _ready(self, address: str) -> None:
        self._source.address = address
        logger.info("source %s: clients push to %s", self._source.name, address)

    def kept(self, position: int) -> None:
        """These rows are durable: their clients are told."""
        self.queue.keep(position)


def _check_listen(source: str, listen: object, certificates: object) -> None:
    where = f"source {source}: listen={listen!r:.80}"
    if not isinstance(listen, str):
        raise ValueError(f"{where}: give host:port, such as 127.0.0.1:7100")
    try:
        host, _ = host_and_port(listen)
    except ChannelError as error:
        raise ValueError(f"{where}: {str(error).partition(': ')[2]}") from error
    if certificates is None:
        if not is_loopback(host):
            raise ValueError(
                f"{where} can be reached from other machines: give certificates (millwheel certs), or listen on 127.0.0.1"
            )
    elif not isinstance(certificates, tuple | list) or len(certificates) != 2:
        raise ValueError(
            f"source {source}: certificates={certificates!r:.80}: give (directory, name), for example ('certs', 'worker')"
        )


def _beside_the_value(value: object) -> NoReturn:
    raise TypeError("the id of a pushed record does not stand in its value")
