"""What a process may do on the network, by the role that its certificate gives it.

Lives here: the roles, and the table of what each may call.  Never here: certificates, gRPC.  Invariant: what is not in the
table is denied.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What a certificate is for."""

    WORKER = "worker"
    CONTROLLER = "controller"
    CLIENT = "client"
    """A program outside of the cluster."""
    INJECTOR = "injector"
    """A program outside of the cluster that sends records and does nothing else."""


MEMBERS: Final = frozenset({Role.WORKER, Role.CONTROLLER})
"""Roles of processes that others call: only their certificates may stand for a host on the network."""

CONVERSE: Final = "/millwheel.channel.v1.Channels/Converse"

PUSH: Final = "/millwheel.push.v1.Pushes/Push"

CALLERS: Final[Mapping[str, frozenset[Role]]] = {
    CONVERSE: MEMBERS,
    PUSH: frozenset({Role.CLIENT, Role.INJECTOR}),
}
"""Who may call each method.  Workers tell workers and controllers; controllers tell workers, and each other."""

HOSTS: Final[Mapping[str, Role]] = {"w": Role.WORKER, "c": Role.CONTROLLER}
"""What the name of a host begins with, and which role may speak for it."""


def may_call(role: Role | None, method: str) -> bool:
    """Whether a certificate with this role, or without one, may call a method."""
    return role is not None and role in CALLERS.get(method, frozenset())


def may_speak_for(role: Role | None, host: str) -> bool:
    """Whether a certificate with this role may be that host."""
    return role is not None and HOSTS.get(host[:1]) is role
