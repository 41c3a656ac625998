"""Where a process listens: host:port, and whether other machines can reach it.

Lives here: reading addresses.  Never here: names are not looked up.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from millwheel.errors import ChannelError

_HOST: Final = re.compile(r"[^\s/@,]+")


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of host:port or [IPv6]:port; raises `ChannelError` for anything else.

    >>> host_and_port("[::1]:7000")
    ('[::1]', 7000)
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        bare.encode("idna")
    except UnicodeError:  # a label is empty or too long, and looking it up would fail with this, which is no OSError
        bare = ""
    if not (colon and bare and _HOST.fullmatch(bare) and port.isascii() and port.isdecimal() and int(port) < 2**16) or (
        ":" in host and bare == host
    ):
        raise ChannelError(f"{address!r} is no address: give host:port, such as 127.0.0.1:7000 or [::1]:7000")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Only processes of this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
