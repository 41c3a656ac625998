"""What an address is."""

from __future__ import annotations

import pytest

from millwheel.errors import ChannelError
from millwheel.transport.addresses import host_and_port, is_loopback


@pytest.mark.parametrize(
    "address", ["127.0.0.1:7000", "[::1]:7000", "node-2.example:0", "a" * 63 + ".example.:1", "bücher.example:1"]
)
def test_a_host_and_a_port_make_an_address(address: str) -> None:
    host, port = host_and_port(address)
    assert f"{host}:{port}" == address


WRONG = [
    "7000",
    "host",
    "host:",
    ":7000",
    "host:x",
    "host:65536",
    "::1:7000",
    "a b:1",
    "http://host:1",
    "a@b:1",
    "a,b:1",
    "a..b:1",
    "a" * 64 + ".example:1",
    "ü" * 64 + ":1",
]


@pytest.mark.parametrize("address", WRONG)
def test_anything_else_is_refused(address: str) -> None:
    with pytest.raises(ChannelError, match="is no address: give host:port"):
        host_and_port(address)


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("localhost", True), ("127.0.0.1", True), ("127.9.8.7", True), ("::1", True), ("[::1]", True),
        ("0.0.0.0", False), ("[::]", False), ("10.0.0.1", False), ("192.168.0.1", False), ("128.0.0.1", False),
        ("localhost.example.org", False), ("127.0.0.1.example.org", False), ("example.org", False), ("", False),
    ],
)  # fmt: skip
def test_only_this_machine_reaches_a_loopback_interface(host: str, only_here: bool) -> None:
    assert is_loopback(host) == only_here
