"""Channels between processes: one gRPC stream for each pair of hosts that live in two of them.

Lives here: listening, calling, calling again, and which stream is the channel now.  Never here: what a stream carries
(`conversations`), or what messages mean.  Invariants:

* a channel is one stream, which carries both directions: when it breaks, both are cut, and both ends know it;
* a host hears `opened(peer)` before the first message of a stream, and nothing of an earlier stream after it;
* a peer that is not named by `peers` is not called, not heard and not told anything.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from millwheel import limits
from millwheel.errors import ChannelError, WireError
from millwheel.host.messages import Message
from millwheel.transport.addresses import host_and_port, is_loopback
from millwheel.transport.conversations import Conversation, FrameStream, StreamBroken
from millwheel.transport.frames import parsed
from millwheel.transport.grpc_streams import Http2Stream, StreamRefused, StreamStatus
from millwheel.transport.http2 import Http2Connection
from millwheel.transport.http2_ends import Http2Server, close_all, dial
from millwheel.transport.proto import channel_pb2 as pb
from millwheel.transport.roles import CONVERSE, MEMBERS, may_call, may_speak_for
from millwheel.transport.tls import caller_context, role_in, server_context
from millwheel.transport.wire_form import WIRE_VERSION

if TYPE_CHECKING:
    from millwheel.transport.certificates import Certificates

logger = logging.getLogger("millwheel")


class Attached:
    """A host of this process."""

    def __init__(self, heard: Callable[[str, Message], None], opened: Callable[[str], None]) -> None:
        self.heard = heard
        self.opened = opened


class Link:
    """What this process knows of the channel between one of its hosts and a peer."""

    def __init__(self, me: str, peer: str, address: str) -> None:
        self.me = me
        self.peer = peer
        self.address = address
        self.conversation: Conversation | None = None
        """The stream that is the channel now."""
        self.calls: asyncio.Task[None] | None = None
        """Calls the peer again and again, when this end has to."""
        self.process = 0
        self.attempt = 0
        """Of the newest stream that the peer has opened; see `Greeting`."""
        self.said = ""
        """What was logged last, so that it is not said with every try."""
        self.farewell_at: float | None = None
        """When the peer closed the channel in order, by the loop's clock: it ends, and will soon be no peer any more."""

    @property
    def caller(self) -> bool:
        """This end calls.  Both ends know both names, so they agree."""
        return self.me < self.peer


class GrpcTransport:
    """A `ports.Transport` over gRPC.  `start` and `close` belong to the event loop in which everything else is called."""

    def __init__(self, listen: str, certificates: Certificates | None = None) -> None:
        """`listen` is host:port; with port 0, `start` finds a free one.

        Without `certificates` only processes of this machine can be reached, and reach this one.  Raises `ChannelError` for
        an address that is none or that other machines can reach without certificates, and for a role that nobody calls.
        """
        self._host, self._port = host_and_port(listen)
        self._certificates = certificates
        self._hosts: dict[str, Attached] = {}
        self._addresses: dict[str, str] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._news = asyncio.Event()
        """Set, and replaced, when there are other links."""
        self._process = secrets.randbits(64)
        self._attempts = 0
        self._streams = 0
        self._server: Http2Server | None = None
        self._dialled: set[Http2Connection] = set()
        self._looks: asyncio.Task[None] | None = None
        if certificates is None and not is_loopback(self._host):
            raise ChannelError(
                f"{listen} can be reached from other machines, and nothing proves who calls: listen on 127.0.0.1, or make "
                "certificates with millwheel certs"
            )
        if certificates is not None and certificates.role not in MEMBERS:
            raise ChannelError(
                f"the certificate of a {certificates.role} cannot listen: take one of a worker or a controller"
            )

    # --- the interface of ports ----------------------------------------------------------------------------------

    def attach(self, name: str, heard: Callable[[str, Message], None], opened: Callable[[str], None]) -> None:
        """See `Transport`."""
        self._hosts[name] = Attached(heard, opened)
        self._relink()

    def tell(self, sender: str, receiver: str, message: Message) -> None:
        """See `Transport`.  Hosts of this process are told directly."""
        here = self._hosts.get(receiver)
        if here is not None:
            here.heard(sender, message)
            return
        link = self._links.get((sender, receiver))
        if link is not None and link.conversation is not None:
            link.conversation.tell(message)

    def open_channels(self) -> set[tuple[str, str]]:
        """(host here, peer) of every channel to another process that is open now."""
        return {pair for pair, link in self._links.items() if link.conversation is not None}

    def peers(self, addresses: Mapping[str, str]) -> None:
        """See `Transport`."""
        self._addresses = {**addresses}
        self._relink()

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Listen, and begin to call peers; the host:port at which this process is reached on this machine.

        Raises `ChannelError` when the port is taken.
        """
        context = None if self._certificates is None else server_context(self._certificates)
        server = Http2Server({CONVERSE: self._answer}, context)
        try:
            self._port = await server.start(self._host, self._port)
        except OSError as error:
            raise ChannelError(
                f"nothing can listen on {self._host}:{self._port}: is the port taken? choose another one ({error})"
            ) from error
        self._server = server
        self._looks = asyncio.create_task(self._look())
        self._relink()
        return f"{self._host}:{self._port}"

    async def close(self) -> None:
        """Send what waits, within `CHANNEL_CLOSE_LIMIT_S`, and end every stream."""
        links, self._links = [*self._links.values()], {}
        conversations = [link.conversation for link in links if link.conversation is not None]
        for conversation in conversations:
            conversation.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.CHANNEL_CLOSE_LIMIT_S):
                await asyncio.gather(*(conversation.ended() for conversation in conversations))
        tasks = [task for task in (self._looks, *(link.calls for link in links)) if task is not None]
        for link in links:
            self._give_up(link, "this process ends")
        if self._looks is not None:
            self._looks.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop()
            self._server = None
        await close_all(self._dialled)

    def abandon(self) -> None:
        """End every stream now, because this process may not act any more; what waits is lost."""
        links, self._links = [*self._links.values()], {}
        for link in links:
            self._give_up(link, "this process may not act any more")

    # --- links ---------------------------------------------------------------------------------------------------

    def _relink(self) -> None:
        """Have a link for every pair of a host here and a peer elsewhere, and no other."""
        if self._server is None:
            return
        wanted = {
            (me, peer): address
            for peer, address in self._addresses.items()
            if peer not in self._hosts
            for me in self._hosts
        }
        for pair, link in [*self._links.items()]:
            if wanted.get(pair) != link.address:
                del self._links[pair]
                self._give_up(link, f"{link.peer} is not at {link.address} any more")
        for (me, peer), address in wanted.items():
            if (me, peer) not in self._links:
                link = self._links[me, peer] = Link(me, peer, address)
                if link.caller:
                    link.calls = asyncio.create_task(self._call(link))
        self._news.set()
        self._news = asyncio.Event()

    def _give_up(self, link: Link, why: str) -> None:
        if link.conversation is not None:
            link.conversation.end(why)
            link.conversation = None
        if link.calls is not None:
            link.calls.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(limits.CHANNEL_BEAT_S)
            for link in [*self._links.values()]:
                if link.conversation is not None:
                    link.conversation.look()

    async def _carry(self, link: Link, stream: FrameStream) -> Conversation:
        """From now on this stream is the channel, until it ends; the conversation, which says why it did."""
        if link.conversation is not None:
            link.conversation.end(f"{link.peer} has opened another stream")
        here = self._hosts[link.me]
        conversation = Conversation(stream, lambda message: here.heard(link.peer, message))
        link.conversation, link.farewell_at = conversation, None
        here.opened(link.peer)
        if link.said:
            link.said = ""
            logger.info("the channel from %s to %s (%s) is open", link.me, link.peer, link.address, extra=_facts(link))
        try:
            await conversation.run()
        finally:
            if link.conversation is conversation:
                link.conversation = None
                self._say(link, conversation.why, logging.INFO if conversation.orderly else logging.WARNING)
                if conversation.orderly:
                    link.farewell_at = asyncio.get_running_loop().time()
        return conversation

    def _say(self, link: Link, why: str, level: int = logging.WARNING) -> None:
        at = link.farewell_at
        if at is not None and asyncio.get_running_loop().time() - at < limits.CHANNEL_FAREWELL_S:
            return
        if why != link.said and self._links.get((link.me, link.peer)) is link:
            link.said = why
            logger.log(
                level,
                "the channel from %s to %s (%s) is cut: %s",
                link.me,
                link.peer,
                link.address,
                why,
                extra=_facts(link),
            )

    # --- the end that calls --------------------------------------------------------------------------------------

    async def _call(self, link: Link) -> None:
        """Call until the link is given up, less and less often while streams do not last."""
        delay_s = 0.0
        while True:
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            began = asyncio.get_running_loop().time()
            try:
                await self._call_once(link)
            except (StreamBroken, WireError) as error:
                self._say(link, str(error))
            except TimeoutError:
                self._say(link, "it does not answer")
            except Exception:  # a mistake here must not leave a channel cut for ever
                logger.exception("calling %s failed", link.peer)
            if asyncio.get_running_loop().time() - began > limits.DIAL_STEADY_S:
                delay_s = 0.0
            delay_s = min(max(2 * delay_s, limits.DIAL_FIRST_DELAY_S), limits.DIAL_LONGEST_DELAY_S)

    async def _call_once(self, link: Link) -> None:
        self._attempts += 1
        greeting = pb.Greeting(
            version=WIRE_VERSION, host=link.me, peer=link.peer, process=self._process, attempt=self._attempts
        )
        async with asyncio.timeout(limits.CHANNEL_GREETING_LIMIT_S):
            connection = await self._connected(link.address)
        try:
            stream = connection.call(CONVERSE, link.address)
            self._check_called(link, stream)
            await _greeted(stream, greeting)
            if (await self._carry(link, stream)).orderly:
                return
            stream.cancel()
        finally:
            connection.close()

    def _check_called(self, link: Link, stream: Http2Stream) -> None:
        """Who is called must have the certificate of such a host as well."""
        if self._certificates is not None and not may_speak_for(role := role_in(stream.certificate()), link.peer):
            raise StreamBroken(f"who answers has a certificate of the role {role}, which is not {link.peer}")

    async def _connected(self, address: str) -> Http2Connection:
        host, port = host_and_port(address)
        if self._certificates is None:
            if not is_loopback(host):
                raise StreamBroken("it is on another machine: give both processes certificates (millwheel certs)")
            return await dial(host, port, None, self._dialled)
        return await dial(host, port, caller_context(self._certificates), self._dialled)

    # --- the end that is called ----------------------------------------------------------------------------------

    async def _answer(self, stream: Http2Stream) -> None:
        if self._certificates is not None and not may_call(role := role_in(stream.certificate()), CONVERSE):
            _refuse(stream, StreamStatus.PERMISSION_DENIED, f"a certificate of the role {role} opens no channel")
        if self._streams >= limits.CHANNEL_STREAMS_LIMIT:
            _refuse(stream, StreamStatus.RESOURCE_EXHAUSTED, "too many streams (CHANNEL_STREAMS_LIMIT)")
        self._streams += 1
        try:
            greeting = await _greeting(stream)
            link = await self._link_of(greeting, stream)
            if greeting.process == link.process and greeting.attempt <= link.attempt:
                _refuse(stream, StreamStatus.ABORTED, f"{link.peer} has called again since")
            link.process, link.attempt = greeting.process, greeting.attempt
            greeting.host, greeting.peer = link.me, link.peer
            await stream.write(pb.Frame(greeting=greeting).SerializeToString())
            if link.attempt != greeting.attempt or self._links.get((link.me, link.peer)) is not link:
                _refuse(stream, StreamStatus.ABORTED, f"{link.peer} has called again since, or is given up")
            conversation = await self._carry(link, stream)
        except StreamBroken as broken:
            logger.debug("a stream from %s broke: %s", stream.peer, broken)
            return
        finally:
            self._streams -= 1
        if conversation.malformed:
            _refuse(stream, StreamStatus.INVALID_ARGUMENT, conversation.why)
        if not conversation.orderly:
            raise StreamRefused(StreamStatus.ABORTED, conversation.why)

    async def _link_of(self, greeting: pb.Greeting, stream: Http2Stream) -> Link:
        """The link that the greeting asks for.  A process that is new may call before it is known here."""
        if self._certificates is not None and not may_speak_for(role := role_in(stream.certificate()), greeting.host):
            _refuse(
                stream,
                StreamStatus.PERMISSION_DENIED,
                f"a certificate of the role {role} is not {greeting.host!r:.80}",
            )
        if greeting.peer not in self._hosts:
            _refuse(stream, StreamStatus.NOT_FOUND, f"no host of this process is called {greeting.peer!r:.80}")
        if not greeting.host < greeting.peer:
            _refuse(stream, StreamStatus.INVALID_ARGUMENT, f"{greeting.peer!r:.80} calls {greeting.host!r:.80}")
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.CHANNEL_GREETING_LIMIT_S):
                while (link := self._links.get((greeting.peer, greeting.host))) is None:
                    await self._news.wait()
                return link
        _refuse(stream, StreamStatus.PERMISSION_DENIED, f"{greeting.host!r:.80} is no member that is known here")


async def _greeting(stream: Http2Stream) -> pb.Greeting:
    """The greeting of whoever has called."""
    frame = pb.Frame()
    try:
        async with asyncio.timeout(limits.CHANNEL_GREETING_LIMIT_S):
            frame = parsed(await stream.read() or b"")
    except WireError as error:
        _refuse(stream, StreamStatus.INVALID_ARGUMENT, str(error))
    except TimeoutError:
        _refuse(stream, StreamStatus.DEADLINE_EXCEEDED, "no greeting came (CHANNEL_GREETING_LIMIT_S)")
    if not (frame.greeting.host and frame.greeting.peer):
        _refuse(stream, StreamStatus.INVALID_ARGUMENT, "a stream begins with a greeting, and this does not")
    if frame.greeting.version != WIRE_VERSION:
        _refuse(stream, StreamStatus.FAILED_PRECONDITION, _other_version(frame.greeting.version))
    return frame.greeting


async def _greeted(stream: Http2Stream, greeting: pb.Greeting) -> None:
    # A little longer than the other end takes to refuse, so that its reason is heard.
    async with asyncio.timeout(2 * limits.CHANNEL_GREETING_LIMIT_S):
        await stream.write(pb.Frame(greeting=greeting).SerializeToString())
        data = await stream.read()
    answer = parsed(data or b"").greeting
    if answer.version != greeting.version:
        raise WireError(_other_version(answer.version))
    if (answer.host, answer.peer) != (greeting.peer, greeting.host):
        raise WireError(f"{answer.host!r:.80} answers instead")
    if (answer.process, answer.attempt) != (greeting.process, greeting.attempt):
        raise WireError("the answer is one to another call")


def _other_version(version: int) -> str:
    return f"the other end speaks version {version} and this one {WIRE_VERSION}: run the same release everywhere"


def _refuse(stream: Http2Stream, status: StreamStatus, why: str) -> NoReturn:
    """End a stream with a status."""
    logger.warning("a stream from %s was refused: %s", stream.peer, why)
    raise StreamRefused(status, why)


def _facts(link: Link) -> dict[str, dict[str, str]]:
    """The same for a log that programs read."""
    return {"facts": {"host": link.me, "peer": link.peer, "address": link.address}}
