"""Certificates of a cluster are made, kept, read and judged; what is wrong with one is named."""

from __future__ import annotations

import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from millwheel import limits
from millwheel.cli.certs import ROLES
from millwheel.cli.main import main
from millwheel.errors import ChannelError
from millwheel.transport import certificates
from millwheel.transport.certificates import Certificates, OwnAuthority, keep, role_of
from millwheel.transport.proto import channel_pb2, push_pb2
from millwheel.transport.roles import CALLERS, CONVERSE, MEMBERS, PUSH, Role, may_call, may_speak_for

NOW = datetime.now(UTC)


def purposes(made: Certificates) -> set[x509.ObjectIdentifier]:
    certificate = x509.load_pem_x509_certificate(made.certificate)
    return {*certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value}


@pytest.mark.parametrize("role", Role)
def test_a_certificate_has_its_role_its_hosts_and_its_time(role: Role) -> None:
    authority = OwnAuthority.make()
    made = authority.issue(role, ["127.0.0.1", "node-1.example"])
    assert made.role is role
    assert made.authority == authority.pem
    certificate = x509.load_pem_x509_certificate(made.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["node-1.example"]
    assert certificate.not_valid_after_utc - NOW < timedelta(days=limits.CERTIFICATE_LIFETIME_DAYS + 1)
    assert certificate.not_valid_before_utc < datetime.now(UTC) - timedelta(seconds=limits.CLOCK_SKEW_S - 60)
    # Others must not be able to stand in for a member on the network, and nobody signs in the authority's place.
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (ExtendedKeyUsageOID.SERVER_AUTH in purposes(made)) == (role in MEMBERS)
    made.check("it", datetime.now(UTC))  # NOW may be older than the certificate


def test_a_directory_keeps_one_authority_and_its_secrets(tmp_path: Path) -> None:
    place = tmp_path / "certs"
    first = OwnAuthority.kept_in(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert OwnAuthority.kept_in(place).pem == first.pem
    (place / ".worker.key.new").touch(0o644)  # of a process that was killed while it wrote
    pem, key = keep(place, "worker", first.issue(Role.WORKER, ["127.0.0.1"]))
    for secret in (key, place / "authority.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert Certificates.read(place, "worker").role is Role.WORKER
    # Made again, and for another role: the files are replaced.
    keep(place, "worker", first.issue(Role.CLIENT))
    assert Certificates.read(place, "worker").role is Role.CLIENT
    assert {path.name for path in place.iterdir()} == {"authority.pem", "authority.key", pem.name, key.name}


def test_an_authority_signs_for_processes_only_and_is_called_as_no_other_is() -> None:
    one, other = (x509.load_pem_x509_certificate(OwnAuthority.make().pem) for _ in range(2))
    limits_of_it = one.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits_of_it.ca, limits_of_it.path_length) == (True, 0)
    assert one.subject != other.subject


@pytest.mark.parametrize("name", ["authority", "", ".hidden", "a/b", "worker\n", "../worker", "a b"])
def test_a_file_of_certificates_has_a_plain_name(name: str, tmp_path: Path) -> None:
    made = OwnAuthority.kept_in(tmp_path).issue(Role.CLIENT)
    with pytest.raises(ChannelError, match="cannot name a file of certificates"):
        keep(tmp_path, name, made)


def expired(authority: OwnAuthority) -> Certificates:
    return authority.issue(Role.CLIENT, now=NOW - timedelta(days=limits.CERTIFICATE_LIFETIME_DAYS + 1))


def of_an_expired_one(_: OwnAuthority) -> Certificates:
    long_ago = NOW - timedelta(days=limits.AUTHORITY_LIFETIME_DAYS + 1)
    return OwnAuthority.make(long_ago).issue(Role.CLIENT)


def of_another(authority: OwnAuthority) -> Certificates:
    return Certificates(authority.pem, (other := OwnAuthority.make().issue(Role.CLIENT)).certificate, other.key)


def of_an_expired_one_beside_a_new_one(_: OwnAuthority) -> Certificates:
    """The new authority, which everybody trusts already, has not signed it."""
    made = of_an_expired_one(_)
    return Certificates(made.authority + OwnAuthority.make().pem, made.certificate, made.key)


def of_tomorrow(authority: OwnAuthority) -> Certificates:
    return authority.issue(Role.CLIENT, now=NOW + timedelta(days=1))


def with_another_key(authority: OwnAuthority) -> Certificates:
    return Certificates(authority.pem, authority.issue(Role.CLIENT).certificate, authority.issue(Role.CLIENT).key)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (expired, "is valid until"),
        (of_an_expired_one, r"the authority of .*it.pem is valid until .*, and not now: make another one"),
        (of_an_expired_one_beside_a_new_one, r"the authority of .*it.pem is valid until .*, and not now"),
        (of_tomorrow, "is valid until .*, and not now"),
        (of_another, "not of the authority"),
        (with_another_key, "the key beside"),
        (lambda authority: Certificates(authority.pem, b"x", b"x"), "is no certificate"),
        (lambda authority: Certificates(authority.pem, authority.pem, b"x"), "names no role"),
        (
            lambda authority: Certificates(b"x", (one := authority.issue(Role.CLIENT)).certificate, one.key),
            "authority of",
        ),
    ],
)
def test_what_is_wrong_with_a_certificate_is_named(make, says: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    made = make(OwnAuthority.make())
    (tmp_path / "authority.pem").write_bytes(made.authority)
    keep(tmp_path, "it", made)
    with pytest.raises(ChannelError, match=says) as error:
        Certificates.read(tmp_path, "it")
    assert str(tmp_path / "it.pem") in str(error.value)
    assert "millwheel certs" in str(error.value)


def test_a_certificate_that_ends_soon_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = OwnAuthority.kept_in(tmp_path)
    keep(tmp_path, "it", authority.issue(Role.CLIENT, now=NOW - timedelta(days=limits.CERTIFICATE_LIFETIME_DAYS - 5)))
    Certificates.read(tmp_path, "it")
    assert "it.pem is valid until" in caplog.text


def test_a_certificate_whose_authority_ends_soon_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = OwnAuthority.make(NOW - timedelta(days=limits.AUTHORITY_LIFETIME_DAYS - 5))
    (tmp_path / "authority.pem").write_bytes(authority.pem)
    keep(tmp_path, "it", authority.issue(Role.CLIENT))
    Certificates.read(tmp_path, "it")
    assert "it.pem is valid until" in caplog.text


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match=r"authority\.pem cannot be read: .*; millwheel certs makes it"):
        Certificates.read(tmp_path, "worker")


@pytest.mark.parametrize("damage", ["authority.key", "authority.pem"])
def test_an_authority_that_is_damaged_is_not_replaced(damage: str, tmp_path: Path) -> None:
    OwnAuthority.kept_in(tmp_path)
    (tmp_path / damage).write_bytes(b"nonsense")
    with pytest.raises(ChannelError, match=damage):
        OwnAuthority.kept_in(tmp_path)
    (tmp_path / damage).unlink()
    with pytest.raises(ChannelError, match=damage):
        OwnAuthority.kept_in(tmp_path)


def test_keys_of_two_authorities_are_told_apart(tmp_path: Path) -> None:
    OwnAuthority.kept_in(tmp_path / "a")
    OwnAuthority.kept_in(tmp_path / "b")
    (tmp_path / "a" / "authority.pem").write_bytes((tmp_path / "b" / "authority.pem").read_bytes())
    with pytest.raises(ChannelError, match="do not belong together"):
        OwnAuthority.kept_in(tmp_path / "a")


@pytest.mark.parametrize("host", ["", "a:70", "a b", "*", "-a", "http://a", "millwheel:role:controller", "ä"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ChannelError, match="no name of a host"):
        OwnAuthority.make().issue(Role.WORKER, [host])


def test_a_role_is_of_an_own_certificate_only() -> None:
    assert role_of(b"") is None
    assert role_of(OwnAuthority.make().pem) is None


def test_a_certificate_of_two_roles_has_none() -> None:
    """Which of them is meant, nobody can tell, and the wrong one may do more."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    for roles, found in (([Role.CLIENT], Role.CLIENT), ([Role.CLIENT, Role.WORKER], None)):
        names = x509.SubjectAlternativeName(
            [x509.UniformResourceIdentifier(f"millwheel:role:{role}") for role in roles]
        )
        made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
        assert role_of(made.public_bytes(serialization.Encoding.PEM)) is found


# The table


def test_every_method_of_the_protocol_is_in_the_table_and_no_other() -> None:
    files = [channel_pb2.DESCRIPTOR, push_pb2.DESCRIPTOR]
    methods = {
        f"/{service.full_name}/{method.name}"
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert methods == CALLERS.keys()


def test_members_converse_and_programs_outside_push() -> None:
    assert {role for role in Role if may_call(role, CONVERSE)} == {Role.WORKER, Role.CONTROLLER}
    assert {role for role in Role if may_call(role, PUSH)} == {Role.CLIENT, Role.INJECTOR}


def test_what_is_not_in_the_table_is_denied() -> None:
    assert not any(may_call(role, "/millwheel.channel.v1.Channels/Other") for role in Role)
    assert not any(may_call(None, method) for method in CALLERS)


@pytest.mark.parametrize("role", [*Role, None])
@pytest.mark.parametrize("host", ["w1", "c1", "x1", ""])
def test_a_role_speaks_for_its_own_hosts(role: Role | None, host: str) -> None:
    assert may_speak_for(role, host) == ((role, host[:1]) in {(Role.WORKER, "w"), (Role.CONTROLLER, "c")})


# A process with a certificate that others do not take

HOSTS = ["127.0.0.1", "::1", "Node-1.example", "*.cluster.example"]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:7000", "[::1]:7000", "[0::1]:7000", "node-1.Example:7000", "w3.cluster.example:7000"]
)
def test_others_take_a_process_where_its_certificate_says_that_it_is(address: str) -> None:
    made = wild(OwnAuthority.make())
    made.check_member(Role.WORKER, address)
    with pytest.raises(ChannelError, match="is that of a worker, and others expect one of a controller"):
        made.check_member(Role.CONTROLLER, address)


@pytest.mark.parametrize(
    "address", ["127.0.0.2:7000", "node-2.example:7000", "localhost:7000", "a.b.cluster.example:7000", "example:7000"]
)
def test_elsewhere_they_do_not(address: str) -> None:
    host = address.partition(":")[0]
    with pytest.raises(ChannelError, match=rf"is for .*node-1.example.*127.0.0.1.*, and others call .* at {host}"):
        wild(OwnAuthority.make()).check_member(Role.WORKER, address)


def wild(authority: OwnAuthority) -> Certificates:
    """A worker's certificate, with a star that ours never have: others may be made elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "_DNS_NAME", re.compile(r"[a-z0-9*.-]+", re.IGNORECASE))
        return authority.issue(Role.WORKER, [host.lower() for host in HOSTS])


ALONE = """
from millwheel import Computation, Pipeline, Stream, TextCoder, subscribe
from millwheel_injectors import FileSource

class Nothing(Computation[str]):
    def ProcessRecord(self, context, record):
        pass

lines = Stream("lines", TextCoder())
pipeline = Pipeline("alone")
pipeline.inject(FileSource("log", "no.log"), into=lines)
pipeline.add(Nothing, [subscribe(lines, key=str)])
"""


@pytest.mark.parametrize("command", ["worker", "controller"])
@pytest.mark.parametrize(
    ("role", "host", "more", "says"),
    [
        ("other", "127.0.0.1", [], "and others expect one of a"),
        ("same", "node-7", [], "is for node-7, and others call this process at 127.0.0.1"),
        ("same", "127.0.0.1", ["--advertise", "node-7"], "is for 127.0.0.1, and others call this process at node-7"),
        ("none", "127.0.0.1", ["--advertise", "node-7:70"], "nobody calls another machine without certificates"),
    ],
)
def test_a_process_that_nobody_would_take_does_not_join(
    command: str, role: str, host: str, more: list[str], says: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It would be given intervals, and all would wait for them."""
    monkeypatch.chdir(tmp_path)
    name = f"alone_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(ALONE)
    other = {"worker": "controller", "controller": "worker"}[command]
    made = OwnAuthority.kept_in("certs").issue(Role(other if role == "other" else command), [host])
    keep("certs", command, made)
    certs = [] if role == "none" else ["--certs", "certs"]
    nowhere = ["--store", "postgresql://127.0.0.1:1/none"]
    assert main([command, f"{name}:pipeline", *certs, *nowhere, *more]) == 1
    assert says in capfd.readouterr().err


# The command


def test_the_command_knows_the_roles() -> None:
    assert tuple(Role) == ROLES


def test_the_command_makes_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "new" / "certs"
    assert main(["certs", str(place), "--role", "worker", "--host", "127.0.0.1", "--name", "w-a"]) == 0
    assert (
        capsys.readouterr().out == f"millwheel: {place / 'w-a.pem'} and {place / 'w-a.key'} (role worker, 127.0.0.1)\n"
    )
    assert Certificates.read(place, "w-a").role is Role.WORKER
    assert main(["certs", str(place), "--role", "client"]) == 0
    assert Certificates.read(place, "client").role is Role.CLIENT


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--role", "worker"], 1, "name the hosts where it listens (--host)"),
        (["--role", "king"], 2, "king"),
        ([], 2, "--role"),
        (["--role", "client", "--name", "../client"], 1, "cannot name a file"),
        (["--role", "client", "--name", "authority"], 1, "cannot name a file"),
        (["--role", "client", "--name", ""], 2, "--name is empty; leave it out, or give a value"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", str(tmp_path), *arguments]) == status
    assert says in capsys.readouterr().err


def test_the_command_takes_no_place_that_is_not_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["certs", "", "--role", "client"]) == 2
    assert "DIRECTORY is empty: name the one that keeps the authority" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
