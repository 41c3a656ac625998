"""Channels between the hosts of one process.

Lives here: handing messages over, as they are.  Never here: what they mean, queues, or a thread; whoever attaches a host
decides when it handles what it has heard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millwheel.host.messages import Message


class LocalTransport:
    """Nothing is lost, repeated or reordered, and no channel is ever cut."""

    def __init__(self) -> None:
        self._heard: dict[str, Callable[[str, Message], None]] = {}

    def attach(self, name: str, heard: Callable[[str, Message], None], opened: Callable[[str], None]) -> None:
        """See `Transport`; `opened` is never called."""
        self._heard[name] = heard

    def tell(self, sender: str, receiver: str, message: Message) -> None:
        """See `Transport`; raises `KeyError` for a host that nobody has attached."""
        self._heard[receiver](sender, message)

    def peers(self, addresses: Mapping[str, str]) -> None:
        """See `Transport`; there are no other processes, so nothing is done."""
