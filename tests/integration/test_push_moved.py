"""A source that serves clients on a worker of a cluster: when it moves, clients find it, and each record counts once."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millwheel.push import Pusher
from millwheel_storage.embedded import EmbeddedPostgres
from tests.integration.test_cluster_run import Place, ended, until
from tests.patience import LEASE_S

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900)]

ORDERS = """
import os
from millwheel import Computation, JsonCoder, MapCell, Pipeline, Stream, Table, ValueCell, subscribe
from millwheel_injectors import PushSource

orders = Stream("orders", JsonCoder(dict))
seen = Table("seen", {"id": "text", "times": "bigint"}, ("id",))

class Ledger(Computation):
    ids = MapCell(JsonCoder(int))

    def ProcessRecord(self, context, record):
        name = record.value["id"]
        self.ids.set(name, self.ids.get(name, 0) + 1)
        context.upsert(seen, {"id": name, "times": self.ids.get(name)})

pipeline = Pipeline(os.environ["PIPELINE"])
pipeline.inject(PushSource(orders, os.environ["PUSH_AT"]), into=orders)
pipeline.add(Ledger, [subscribe(orders, key=lambda value: value["key"])], split_keys=["k1"])
pipeline.sink(seen)
"""
BATCH = 200


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Orders(Place):
    """Workers that let clients in, each at an address of its own; one serves at a time."""

    def __init__(self, directory: Path, url: str, name: str) -> None:
        super().__init__(directory, url, name)
        (directory / "orders.py").write_text(ORDERS)
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]

    def start(self, role: str, name: str, at: int = 0) -> subprocess.Popen[str]:
        return self.command(
            role, "orders:pipeline", "--lease", f"{LEASE_S:g}", "--name", name, PUSH_AT=self.addresses[at]
        )

    def server(self) -> str:
        """The name of the worker that serves clients, or ""."""
        if self.connection.execute("SELECT to_regclass(%s)", (f'"{self.name}".source_owner',)).fetchone() == (None,):
            return ""
        found = self.connection.execute(
            f'SELECT m.name FROM "{self.name}".source_owner o JOIN "{self.name}".cluster_member m '
            "ON m.incarnation = o.owner"
        ).fetchone()
        return str(found[0]) if found is not None else ""

    def times(self) -> dict[str, int]:
        return dict(self.connection.execute(f'SELECT id, times FROM "{self.name}".seen').fetchall())


class Program:
    """Pushes batch after batch, and says how many records it knows to be durable."""

    def __init__(self, addresses: list[str]) -> None:
        self.durable = 0
        self.error: BaseException | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(addresses,), daemon=True)
        self._thread.start()

    def _run(self, addresses: list[str]) -> None:
        try:
            with Pusher(addresses, "orders") as pusher:
                while not self._ends.is_set():
                    for number in range(self.durable, self.durable + BATCH):
                        value = {"id": f"r{number}", "key": f"k{number % 20:02}"}
                        pusher.push(f"r{number}", json.dumps(value).encode(), 1_000 * number + 1)
                    pusher.flush()
                    self.durable += BATCH
        except BaseException as error:
            self.error = error

    def more(self) -> None:
        """Wait until three more batches are durable: two of them were sent after now."""
        wanted = self.durable + 3 * BATCH
        until(lambda: self.durable >= wanted or self.error is not None)
        assert self.error is None

    def end(self) -> None:
        self._ends.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.error is None


@pytest.fixture
def orders(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> Iterator[Orders]:
    made = Orders(tmp_path, postgres.url, pipeline)
    yield made
    made.close()


def test_clients_find_the_worker_that_serves_after_a_kill_and_after_a_move(orders: Orders) -> None:
    controller = orders.start("controller", "c")
    workers = {name: orders.start("worker", name, at) for at, name in enumerate(("w0", "w1"))}
    program = Program(orders.addresses)
    program.more()

    killed = orders.server()
    workers[killed].kill()  # with records of the client on their way
    workers[killed].communicate()
    until(lambda: orders.server() not in ("", killed))
    program.more()

    # Another worker comes where the dead one was, and the one that serves leaves in order.
    left = orders.server()
    at = int(killed[1])
    workers["w2"] = orders.start("worker", "w2", at)
    until(lambda: "w2" in orders.owners())
    workers[left].send_signal(signal.SIGTERM)
    status, out = ended(workers[left])
    assert status == 130, out
    until(lambda: orders.server() == "w2")
    program.more()

    program.end()
    assert orders.times() == {f"r{number}": 1 for number in range(program.durable)}
    for process in (workers["w2"], controller):
        process.send_signal(signal.SIGTERM)
        status, out = ended(process)
        assert status == 130, out
