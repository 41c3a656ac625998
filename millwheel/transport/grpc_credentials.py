"""Certificates in gRPC's own terms, and the role of whoever calls: for pushed records.

Lives here: credentials.  Never here: which role may do what; channels, whose TLS is `tls`.  Both ends prove themselves,
on every connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from millwheel.transport.roles import Role

if TYPE_CHECKING:
    from millwheel.transport.certificates import Certificates


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """For a process that listens: who has no certificate of the same authority is turned away before it can say anything."""
    pair = (certificates.key, certificates.certificate)
    return grpc.ssl_server_credentials([pair], certificates.authority, require_client_auth=True)


def caller_credentials(certificates: Certificates) -> grpc.ChannelCredentials:
    """For a process that calls: the other end must have a certificate for the host that is called."""
    return grpc.ssl_channel_credentials(certificates.authority, certificates.key, certificates.certificate)


def caller_role(context: Any) -> Role | None:
    """The role of the certificate with which a stream was opened."""
    for pem in context.auth_context().get("x509_pem_cert", ()):
        from millwheel.transport.certificates import role_of

        return role_of(pem)
    return None
