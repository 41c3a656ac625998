"""Over real TLS: who may call what, with which certificate; and what a stranger can do, which is nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import grpc.aio
import pytest

from millwheel import limits
from millwheel.errors import ChannelError
from millwheel.transport import tls
from millwheel.transport.certificates import Certificates, OwnAuthority
from millwheel.transport.grpc_channels import GrpcTransport
from millwheel.transport.grpc_credentials import caller_credentials
from millwheel.transport.proto import channel_pb2 as pb
from millwheel.transport.proto import push_pb2 as push
from millwheel.transport.push_form import PUSH_VERSION
from millwheel.transport.push_queue import PushAccount, PushQueue
from millwheel.transport.push_server import PushServer
from millwheel.transport.roles import CALLERS, CONVERSE, MEMBERS, PUSH, Role
from millwheel.transport.wire_form import WIRE_VERSION, encoded
from tests.unit.transport.network import OPENED, Node, delivery, hello, quick, until

HERE = ("127.0.0.1",)
AUTHORITY, OTHER = OwnAuthority.make(), OwnAuthority.make()
LONG_AGO = datetime.now(UTC) - timedelta(days=limits.CERTIFICATE_LIFETIME_DAYS + 1)
HOST_OF = {Role.WORKER: "w1", Role.CONTROLLER: "c1", Role.CLIENT: "w1", Role.INJECTOR: "w1"}


def node(name: str, certificates: Certificates | None = None) -> Node:
    role = Role.CONTROLLER if name.startswith("c") else Role.WORKER
    return Node(name, GrpcTransport("127.0.0.1:0", certificates or AUTHORITY.issue(role, HERE)))


@asynccontextmanager
async def served(certificates: Certificates | None = None) -> AsyncIterator[Node]:
    """The host "w9", which knows w1 and c1, and listens with a certificate."""
    called = node("w9", certificates)
    called.address = await called.transport.start()
    called.transport.peers({"w1": "127.0.0.1:1", "c1": "127.0.0.1:1"})
    try:
        yield called
    finally:
        await called.transport.close()
        await asyncio.sleep(0.02)  # whoever was turned away in the handshake is no connection yet that could be closed


def greeting(host: str) -> bytes:
    form = pb.Greeting(version=WIRE_VERSION, host=host, peer="w9", process=1, attempt=1)
    return pb.Frame(greeting=form).SerializeToString()


async def answer(
    address: str,
    method: str,
    credentials: grpc.ChannelCredentials | None,
    *frames: bytes,
    stay: Callable[[], object] = lambda: True,
) -> Any:
    """The first frame that comes back, or how the stream ends.  After a frame the stream stays open until `stay` is true."""
    options = [("grpc.max_send_message_length", -1)]
    channel = (
        grpc.aio.insecure_channel(address, options=options)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options=options)
    )
    async with channel:
        stream: Any = channel.stream_stream(method)
        call = stream()
        # grpc.aio forgets the status of a stream that is refused while it writes.
        refused = asyncio.ensure_future(call.code())
        await asyncio.wait({refused}, timeout=0.1)
        try:
            for frame in frames if not refused.done() else ():
                await call.write(frame)
            found = await call.read()
            if len(frames) > 1:
                while found is not grpc.aio.EOF:
                    found = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            found = grpc.aio.EOF
        if found is not grpc.aio.EOF:
            await until(stay)  # a caller that has gone when its greeting is answered was never there
            return found
        return await call.code(), await call.details()


def certificate(kind: str, role: Role) -> grpc.ChannelCredentials | None:
    match kind:
        case "right":
            return caller_credentials(AUTHORITY.issue(role, HERE))
        case "other authority":
            other = OTHER.issue(role, HERE)
            return caller_credentials(Certificates(AUTHORITY.pem, other.certificate, other.key))
        case "expired":
            return caller_credentials(AUTHORITY.issue(role, HERE, LONG_AGO))
        case "none":
            return grpc.ssl_channel_credentials(AUTHORITY.pem)
    return None


def opening(host: str) -> bytes:
    return push.PushRequest(opening=push.Opening(version=PUSH_VERSION, stream="orders")).SerializeToString()


FIRST: dict[str, Callable[[str], bytes]] = {CONVERSE: greeting, PUSH: opening}
"""What a caller says first on each method; it is answered when it may."""


@asynccontextmanager
async def door_of(method: str) -> AsyncIterator[tuple[str, Callable[[], object]]]:
    """An address where the method is served, and what says whether anybody was let in."""
    if method == CONVERSE:
        async with served() as called:
            yield called.address, lambda: called.heard
        return
    queue, addresses, met = PushQueue(), list[str](), list[int]()
    made = AUTHORITY.issue(Role.WORKER, HERE)
    server = PushServer(queue, "orders", "127.0.0.1:0", id_slack_us=1, certificates=made)
    task = asyncio.create_task(server.serve(addresses.append))
    await until(lambda: addresses)
    join = queue.join

    def joined(news: Callable[[], None]) -> PushAccount:
        met.append(1)
        return join(news)

    queue.join = joined  # type: ignore[method-assign]
    try:
        yield addresses[0], lambda: met
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("kind", ["right", "none", "no TLS", "other authority", "expired"])
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("method", CALLERS)
def test_a_method_is_open_to_the_roles_of_the_table_and_to_nobody_else(method: str, role: Role, kind: str) -> None:
    async def scenario() -> None:
        async with door_of(method) as (address, let_in):
            found = await answer(address, method, certificate(kind, role), FIRST[method](HOST_OF[role]), stay=let_in)
            if kind == "right" and role in CALLERS[method]:
                assert isinstance(found, bytes)
                assert let_in() in ([(HOST_OF[role], OPENED)], [1])
                return
            assert let_in() == []
            if kind == "right":
                assert found[0] is grpc.StatusCode.PERMISSION_DENIED
                assert f"a certificate of the role {role}" in found[1]
            else:
                assert found[0] is grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


OLD, NEW = ("old",), ("new",)
BOTH = (*OLD, *NEW)


@pytest.mark.parametrize(
    ("here", "there", "talk"),
    [
        (("old", OLD), ("old", BOTH), True),
        (("old", BOTH), ("old", OLD), True),
        (("old", BOTH), ("new", BOTH), True),
        (("new", BOTH), ("old", BOTH), True),
        (("new", NEW), ("new", BOTH), True),
        (("new", NEW), ("old", BOTH), False),
        (("old", OLD), ("new", BOTH), False),
    ],
)
def test_an_authority_is_changed_by_processes_that_trust_both(
    here: tuple[str, tuple[str, ...]], there: tuple[str, tuple[str, ...]], talk: bool
) -> None:
    # Each pair that meets while the steps of the guide are done one process at a time.
    authorities = {"old": AUTHORITY, "new": OTHER}

    def made(signer: str, trusted: tuple[str, ...]) -> Certificates:
        own = authorities[signer].issue(Role.WORKER, HERE)
        both = Certificates(b"".join(authorities[name].pem for name in trusted), own.certificate, own.key)
        both.check("the file", datetime.now(UTC))
        return both

    async def scenario() -> None:
        async with served(made(*here)) as called:
            there_too = caller_credentials(made(*there))
            found = await answer(called.address, CONVERSE, there_too, greeting("w1"), stay=lambda: called.heard)
            assert isinstance(found, bytes) == talk
            assert called.heard == ([("w1", OPENED)] if talk else [])

    asyncio.run(scenario())


def test_a_method_that_nobody_serves_is_denied() -> None:
    async def scenario() -> None:
        async with served() as called:
            method = CONVERSE + "More"
            found = await answer(called.address, method, certificate("right", Role.WORKER), greeting("w1"))
            # INTERNAL: the stream was reset before its status was read.
            assert found[0] in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)
            assert called.heard == []

    asyncio.run(scenario())


@pytest.mark.parametrize(("role", "host"), [(Role.WORKER, "c1"), (Role.CONTROLLER, "w1"), (Role.WORKER, "v1")])
def test_a_certificate_speaks_for_hosts_of_its_role(role: Role, host: str) -> None:
    async def scenario() -> None:
        async with served() as called:
            found = await answer(called.address, CONVERSE, certificate("right", role), greeting(host))
            assert found == (grpc.StatusCode.PERMISSION_DENIED, f"a certificate of the role {role} is not '{host}'")
            assert called.heard == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (bytes(limits.CHANNEL_FRAME_LIMIT_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (pb.Frame(whole=[b"\xff"]).SerializeToString(), grpc.StatusCode.INVALID_ARGUMENT),
        (pb.Frame(whole=[encoded(delivery([2, 1]))]).SerializeToString(), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_what_is_oversized_or_malformed_ends_its_stream_only(frame: bytes, code: grpc.StatusCode) -> None:
    async def scenario() -> None:
        async with served() as called:
            controller = node("c1")
            called.transport.peers({"w1": "127.0.0.1:1", "c1": await controller.transport.start()})
            controller.transport.peers({"w9": called.address})
            try:
                await until(lambda: controller.opened)
                credentials = certificate("right", Role.WORKER)
                found = await answer(called.address, CONVERSE, credentials, greeting("w1"), frame)
                assert found[0] is code
                controller.tell("w9", hello(1))
                await until(lambda: ("c1", hello(1)) in called.heard)
                assert controller.opened == 1
            finally:
                await controller.transport.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("one", "other"), [("w1", "w9"), ("c1", "w9"), ("c1", "c2")])
def test_members_find_each_other_over_tls(one: str, other: str) -> None:
    async def scenario() -> None:
        a, b = node(one), node(other)
        try:
            b.transport.peers({one: await a.transport.start()})
            a.transport.peers({other: await b.transport.start()})
            await until(lambda: a.opened and b.opened)
            sent = delivery([*range(3)], 400_000)
            a.tell(other, sent)
            b.tell(one, sent)
            await until(lambda: a.messages() == b.messages() == [sent])
        finally:
            await a.transport.close()
            await b.transport.close()

    asyncio.run(scenario())


WRONG_SERVERS = {
    "other authority": OTHER.issue(Role.WORKER, HERE),
    "expired": AUTHORITY.issue(Role.WORKER, HERE, LONG_AGO),
    "another role": AUTHORITY.issue(Role.CONTROLLER, HERE),
    "another host": AUTHORITY.issue(Role.WORKER, ["192.0.2.1", "localhost"]),
}


@pytest.mark.parametrize("name", WRONG_SERVERS)
def test_who_calls_does_not_take_a_wrong_server_for_the_peer(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick(monkeypatch)
    made = WRONG_SERVERS[name]

    async def scenario() -> None:
        a, b = node("w1"), node("w9", Certificates(AUTHORITY.pem, made.certificate, made.key))
        try:
            b.transport.peers({"w1": await a.transport.start()})
            a.transport.peers({"w9": await b.transport.start()})
            await until(lambda: "w9" in caplog.text)
            await asyncio.sleep(0.2)
            assert (a.heard, b.heard) == ([], [])
        finally:
            await a.transport.close()
            await b.transport.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("role", [role for role in Role if role not in MEMBERS])
def test_a_role_that_nobody_calls_cannot_stand_for_a_server(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    made = AUTHORITY.issue(role, HERE)
    with pytest.raises(ChannelError, match="cannot listen"):
        GrpcTransport("127.0.0.1:0", made)
    quick(monkeypatch)

    async def scenario() -> None:
        server = grpc.aio.server()
        credentials = grpc.ssl_server_credentials([(made.key, made.certificate)], made.authority, True)
        reached = []

        async def handler(_: Any, context: Any) -> None:
            reached.append(context.peer())

        handlers: dict[str, Any] = {"Converse": grpc.stream_stream_rpc_method_handler(handler)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(CONVERSE.split("/")[1], handlers),))
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        a = node("w1")
        await a.transport.start()
        try:
            a.transport.peers({"w9": f"127.0.0.1:{port}"})
            await asyncio.sleep(0.5)
            assert (a.heard, reached) == ([], [])
        finally:
            await a.transport.close()
            await server.stop(None)

    asyncio.run(scenario())


def test_with_certificates_other_machines_may_be_listened_to() -> None:
    GrpcTransport("0.0.0.0:0", AUTHORITY.issue(Role.WORKER, HERE))


def test_without_certificates_no_other_machine_is_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        a = Node("a")
        await a.transport.start()
        try:
            a.transport.peers({"b": "192.0.2.1:7000"})
            await until(lambda: "millwheel certs" in caplog.text)
        finally:
            await a.transport.close()

    asyncio.run(scenario())
    assert caplog.text.count("another machine") == 1  # said once, and not with every try


def test_no_version_of_tls_is_spoken_that_is_known_to_be_broken() -> None:
    made = OwnAuthority.make().issue(Role.WORKER, ["127.0.0.1"])
    for context in (tls.server_context(made), tls.caller_context(made)):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.verify_mode is ssl.CERT_REQUIRED
