"""A network that is parted: two workers reach Postgres and the controller, and not each other.

Each process has a network namespace, all of them on one bridge.  Postgres is reached by its Unix socket, which no namespace
of networks hides.  The bridge keeps the ports of both workers apart, in silence, as a network does that has failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millwheel_storage.embedded import EmbeddedPostgres
from tests.integration.test_cluster_run import Place, ended, until

pytestmark = [pytest.mark.postgres, pytest.mark.chaos, pytest.mark.slow, pytest.mark.grid, pytest.mark.timeout(900)]

HOSTS = {"w1": "10.77.0.1", "w2": "10.77.0.2", "c1": "10.77.0.3"}
LEASE = "3"
# Root needs no namespace of users.  In one it could not even reach the socket, as Postgres runs as somebody else then.
ROOT = os.getuid() == 0
NEW = ["unshare", "-n"] if ROOT else ["unshare", "-Urn"]
ENTER = ["nsenter", "-n"] if ROOT else ["nsenter", "-n", "-U", "--preserve-credentials"]


def allowed() -> bool:
    """Whether this machine lets us make networks."""
    if not all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip")):
        return False
    tried = [*NEW, "ip", "link", "add", "millwheel0", "type", "bridge"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


class Network:
    """A bridge, and a namespace for each host with an end of a cable in it."""

    def __init__(self) -> None:
        self._held: list[subprocess.Popen[bytes]] = []
        self._hub = self._hold(NEW)
        self._run(self._hub, "ip", "link", "add", "br0", "type", "bridge")
        self._run(self._hub, "ip", "link", "set", "br0", "up")
        self._leaves = {name: self._plug(name, address) for name, address in HOSTS.items()}

    def _plug(self, name: str, address: str) -> int:
        leaf = self._hold([*self.inside(self._hub), "unshare", "-n"])
        self._run(self._hub, "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(leaf))
        self._run(self._hub, "ip", "link", "set", name, "master", "br0", "up")
        for command in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            self._run(leaf, "ip", *command.split())
        return leaf

    def _hold(self, command: list[str]) -> int:
        """A process that keeps a namespace; its number."""
        process = subprocess.Popen([*command, sys.executable, "-c", "print(1, flush=True); input()"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        self._held.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process.pid

    @staticmethod
    def inside(process: int) -> list[str]:
        """What a command begins with that runs in the namespaces of a process."""
        return [*ENTER, "-t", str(process)]

    def _run(self, process: int, *command: str) -> None:
        subprocess.run([*self.inside(process), *command], check=True, capture_output=True)

    def part(self, parted: bool) -> None:
        """The workers reach each other no more, or again."""
        for name in ("w1", "w2"):
            self._run(
                self._hub, "ip", "link", "set", name, "type", "bridge_slave", "isolated", "on" if parted else "off"
            )

    def command(self, name: str) -> list[str]:
        """What a command on the host of this name begins with."""
        return self.inside(self._leaves[name])

    def close(self) -> None:
        """Everything goes with the processes that hold it."""
        for process in reversed(self._held):
            process.kill()
            process.communicate()


@pytest.fixture
def network() -> Iterator[Network]:
    if not allowed():
        pytest.skip("this machine does not let us make network namespaces")
    made = Network()
    yield made
    made.close()


class PartedPlace(Place):
    """Processes on hosts of their own."""

    def start(self, network: Network, role: str, name: str) -> subprocess.Popen[str]:
        command = [
            role, "words:pipeline", "--name", name, "--lease", LEASE,
            "--listen", f"{HOSTS[name]}:7400", "--certs", "certs",
        ]  # fmt: skip
        return self.command(*command, prefix=network.command(name), sleep_s=0.006)


def test_workers_that_do_not_reach_each_other_wait_and_lose_nothing(
    network: Network, postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path
) -> None:
    place = PartedPlace(tmp_path, postgres.url, pipeline)
    try:
        for role, names in (("worker", ("w1", "w2")), ("controller", ("c1",))):
            hosts = [word for name in names for word in ("--host", HOSTS[name])]
            status, out = ended(place.command("certs", "certs", "--role", role, *hosts))
            assert status == 0, out
        members = [place.start(network, *one) for one in (("controller", "c1"), ("worker", "w1"), ("worker", "w2"))]
        place.until_counted(0.1)
        until(lambda: place.owners() == {"w1", "w2"})
        network.part(True)
        stands = still(place)
        assert stands < sum(place.expected.values())  # the network was needed
        assert place.owners() == {"w1", "w2"}  # both renew their leases, so nothing is taken from them
        assert all(member.poll() is None for member in members)
        network.part(False)
        for member in members:
            status, out = ended(member)
            assert status == 0, out
        assert place.rows() == place.expected
    finally:
        place.close()


def still(place: Place) -> int:
    """Wait until nothing more is counted, for longer than any lease; how many words are."""
    counted, since, began = -1, time.monotonic(), time.monotonic()
    while time.monotonic() - since < 2 * float(LEASE) or time.monotonic() - began < 10:
        now = sum(place.rows().values())
        if now != counted:
            counted, since = now, time.monotonic()
        assert time.monotonic() - began < 90, "the parted workers go on"
        time.sleep(0.2)
    return counted
