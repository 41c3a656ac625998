"""Certificates for TLS in the event loop, and the role of the other end: for channels.

Lives here: contexts of `ssl`.  Never here: which role may do what; gRPC's library, whose credentials are `grpc_credentials`.
Both ends prove themselves, on every connection.
"""

from __future__ import annotations

import ssl
import tempfile
from typing import TYPE_CHECKING

from millwheel.transport.roles import Role

if TYPE_CHECKING:
    from millwheel.transport.certificates import Certificates


def server_context(certificates: Certificates) -> ssl.SSLContext:
    """For a process that listens: who has no certificate of the same authority is turned away before it can say anything."""
    context = _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificates)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def caller_context(certificates: Certificates) -> ssl.SSLContext:
    """For a process that calls: the other end must have a certificate for the host that is called."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificates)


def role_in(der: bytes | None) -> Role | None:
    """The role of the certificate that the other end of a connection has shown; None: it has no certificate, or no role."""
    if der is None:
        return None
    from millwheel.transport.certificates import role_of

    return role_of(ssl.DER_cert_to_PEM_cert(der).encode())


def _loaded(context: ssl.SSLContext, certificates: Certificates) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=certificates.authority.decode("ascii"))
    context.set_alpn_protocols(["h2"])
    # Python reads a key from a file only.  Nobody else may read this one, and it is gone at once.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificates.certificate + b"\n" + certificates.key)
        file.flush()
        context.load_cert_chain(file.name)
    return context
