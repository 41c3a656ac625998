"""Certificates of a cluster: an authority of its own, and one certificate for each process.

Lives here: making, keeping, reading and judging them.  Never here: sockets.  A certificate names a role, as the URI
millwheel:role:worker and the like, and the machines where its process listens.  Invariant: only roles that others call get a
certificate that may stand for a server.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from millwheel import limits
from millwheel.errors import ChannelError
from millwheel.transport.addresses import host_and_port
from millwheel.transport.roles import MEMBERS, Role

AUTHORITY: Final = "authority"
"""The name of the authority's own files."""

_ROLE_URI: Final = "millwheel:role:"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII | re.IGNORECASE)
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9])?"
_DNS_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII | re.IGNORECASE)

logger = logging.getLogger("millwheel")


class Certificates(msgspec.Struct, frozen=True):
    """What a process needs to prove who it is, and to judge others, as PEM."""

    authority: bytes
    certificate: bytes
    key: bytes

    @staticmethod
    def read(directory: str | Path, name: str) -> Certificates:
        """`authority.pem`, NAME.pem and NAME.key of a directory; raises `ChannelError` when they are not usable."""
        place = Path(directory)
        files = [place / f"{AUTHORITY}.pem", place / f"{name}.pem", place / f"{name}.key"]
        try:
            authority, certificate, key = (file.read_bytes() for file in files)
        except OSError as error:
            raise ChannelError(
                f"{error.filename} cannot be read: {error.strerror}; millwheel certs makes it"
            ) from error
        found = Certificates(authority, certificate, key)
        found.check(str(files[1]), datetime.now(UTC))
        return found

    @property
    def role(self) -> Role | None:
        """The role of the certificate."""
        return role_of(self.certificate)

    def check(self, file: str, now: datetime) -> None:
        """Raises `ChannelError` for a certificate that nobody would accept; warns of one that will soon be like that."""
        certificate = _parsed(self.certificate, file)
        ends = certificate.not_valid_after_utc
        if self.role is None:
            raise ChannelError(f"{file} names no role: make another one with millwheel certs")
        if not certificate.not_valid_before_utc <= now < ends:
            raise ChannelError(
                f"{file} is valid until {ends:%Y-%m-%d}, and not now: make another one with millwheel certs"
            )
        try:
            mine = serialization.load_pem_private_key(self.key, None).public_key() == certificate.public_key()
        except (ValueError, TypeError):
            mine = False
        if not mine:
            raise ChannelError(
                f"the key beside {file} is not the one of this certificate: make both with millwheel certs"
            )
        authorities = [
            one for one in _all_parsed(self.authority, f"the authority of {file}") if _signed(certificate, one)
        ]
        if not authorities:
            raise ChannelError(f"{file} is not of the authority beside it: make another one with millwheel certs")
        last = max(one.not_valid_after_utc for one in authorities)
        if last <= now:
            raise ChannelError(
                f"the authority of {file} is valid until {last:%Y-%m-%d}, and not now: make another one with millwheel certs "
                "in a new directory, and new certificates for all"
            )
        ends = min(ends, last)
        if ends - now < timedelta(days=limits.CERTIFICATE_WARNING_DAYS):
            logger.warning("%s is valid until %s: make another one with millwheel certs", file, f"{ends:%Y-%m-%d}")

    def check_member(self, role: Role, address: str) -> None:
        """Raises `ChannelError` when others would not take whoever shows it for a process of this role at host:port."""
        if self.role is not role:
            raise ChannelError(
                f"the certificate is that of a {self.role}, and others expect one of a {role}: make it with millwheel certs "
                f"--role {role}"
            )
        host = host_and_port(address)[0].strip("[]")
        names = _hosts_of(x509.load_pem_x509_certificate(self.certificate))
        if not any(_is_called(name, host) for name in names):
            raise ChannelError(
                f"the certificate is for {', '.join(names) or 'no host'}, and others call this process at {host}: make one "
                f"with millwheel certs --host {host}, or say with --advertise where they reach it"
            )


class OwnAuthority:
    """A key and a certificate that prove whose processes belong together.  Whoever has the key can be any of them."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def make(cls, now: datetime | None = None) -> OwnAuthority:
        """A new one, valid for `AUTHORITY_LIFETIME_DAYS`."""
        key = ec.generate_private_key(ec.SECP256R1())
        # Where two authorities are trusted, TLS looks for the one that has signed by its name: no two have the same.
        digest = x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest.hex()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"millwheel authority {digest[:16]}")])
        builder = _builder(name, name, key, now or datetime.now(UTC), limits.AUTHORITY_LIFETIME_DAYS)
        usage = _usage(key_cert_sign=True, crl_sign=True)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return cls(key, builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()))

    @classmethod
    def kept_in(cls, directory: str | Path) -> OwnAuthority:
        """The one of a directory; made there when it has none.  Raises `ChannelError` when its files are not usable."""
        place = Path(directory)
        pem, secret = place / f"{AUTHORITY}.pem", place / f"{AUTHORITY}.key"
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not pem.exists() and not secret.exists():
                made = cls.make()
                made.write(secret, pem)
                return made
            key = serialization.load_pem_private_key(secret.read_bytes(), None)
        except OSError as error:
            raise ChannelError(f"{error.filename or place} cannot be used: {error.strerror or error}") from error
        except (ValueError, TypeError) as error:
            raise ChannelError(f"{secret} is no private key: {error}") from error
        certificate = _parsed(pem.read_bytes() if pem.exists() else b"", str(pem))
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ChannelError(f"{secret} and {pem} do not belong together")
        return cls(key, certificate)

    def write(self, secret: Path, pem: Path) -> None:
        """Keep its key and its certificate in files."""
        _write(secret, _private(self._key), secret=True)
        _write(pem, self.pem)

    @property
    def pem(self) -> bytes:
        """Its certificate: what every process needs to judge others."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, role: Role, hosts: Sequence[str] = (), now: datetime | None = None) -> Certificates:
        """A key and a certificate, valid for `CERTIFICATE_LIFETIME_DAYS`, for a process of this role.

        `hosts` are the names and IP addresses under which others call it.  Raises `ChannelError` for a role that others call
        without any, and for what is no host.
        """
        if role in MEMBERS and not hosts:
            raise ChannelError(f"a {role} is called by others: name the hosts where it listens (--host)")
        key = ec.generate_private_key(ec.SECP256R1())
        moment = now or datetime.now(UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"millwheel {role}")])
        builder = _builder(subject, self._certificate.subject, key, moment, limits.CERTIFICATE_LIFETIME_DAYS)
        names = [*map(_host, hosts), x509.UniformResourceIdentifier(_ROLE_URI + role)]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if role in MEMBERS else [])]
        builder = (
            builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(_usage(digital_signature=True), critical=True)
        )
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return Certificates(self.pem, certificate, _private(key))


def role_of(pem: bytes) -> Role | None:
    """The role that a certificate gives, or None.  Whether it is genuine is judged elsewhere."""
    try:
        names = (
            x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        )
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        roles = [Role(uri.removeprefix(_ROLE_URI)) for uri in uris if uri.startswith(_ROLE_URI)]
    except (ValueError, x509.ExtensionNotFound):
        return None
    return roles[0] if len(roles) == 1 else None


def keep(directory: str | Path, name: str, made: Certificates) -> tuple[Path, Path]:
    """Write NAME.pem and NAME.key into a directory, in the place of those that are there; their paths."""
    if not _NAME.fullmatch(name) or name == AUTHORITY:
        raise ChannelError(f"{name!r} cannot name a file of certificates: take letters, digits, '.', '-' and '_'")
    pem, secret = Path(directory) / f"{name}.pem", Path(directory) / f"{name}.key"
    try:
        _write(secret, made.key, secret=True)
        _write(pem, made.certificate)
    except OSError as error:
        raise ChannelError(f"{error.filename or directory} cannot be written: {error.strerror or error}") from error
    return pem, secret


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    """The file has its new content at once, and a secret one is nobody else's to read, at any time."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
        file.write(data)
    beside.replace(path)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    # Clocks of machines differ a little: what was made a moment ago is valid on all of them.
    begins = now - timedelta(seconds=limits.CLOCK_SKEW_S)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(host):
        raise ChannelError(f"{host!r} is no name of a host and no IP address; the port is not a part of it")
    return x509.DNSName(host)


def _hosts_of(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _is_called(name: str, host: str) -> bool:
    """Whether TLS takes a certificate for `name` when it calls `host`; a star stands for the first label."""
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    except ValueError:
        pass
    name, host = name.lower(), host.lower()
    return name == host or (name.startswith("*.") and name[1:] == f".{host.partition('.')[2]}")


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _all_parsed(pem: bytes, file: str) -> list[x509.Certificate]:
    """An authority, or several while one takes the place of another."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ChannelError(f"{file} is no certificate: make another one with millwheel certs") from error


def _parsed(pem: bytes, file: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ChannelError(f"{file} is no certificate: make another one with millwheel certs") from error
