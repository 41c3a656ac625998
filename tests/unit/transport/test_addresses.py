"""What an address is."""

from __future__ import annotations

import pytest

from millwheel.errors import ChannelError
from millwheel.transport.addresses import host_and_port


@pytest.mark.parametrize("address", ["127.0.0.1:7000", "[::1]:7000", "node-2.example:0"])
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
]


@pytest.mark.parametrize("address", WRONG)
def test_anything_else_is_refused(address: str) -> None:
    with pytest.raises(ChannelError, match="is no address: give host:port"):
        host_and_port(address)
