"""Clusters of real processes under snapshots: the same rows as an embedded run, whoever is killed or stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    LogWrite,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.cluster import Placement
from millwheel.ids import IntervalId, Seq
from millwheel.overview import ClusterOffice, SeenInterval
from millwheel.ports import Declaration, PipelineShape
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from tests.integration.test_cluster_run import WORDS, Place, children, ended, office, until
from tests.patience import LEASE_S

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900)]

NAMED = 'Pipeline(os.environ["PIPELINE"])'
UNDER_SNAPSHOTS = 'Pipeline(os.environ["PIPELINE"], durability=Snapshots(every_ms=200))'
LEASE_US = 3_600_000_000


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, postgres.url, pipeline)
    assert NAMED in WORDS
    text = WORDS.replace(NAMED, UNDER_SNAPSHOTS).replace("Pipeline,", "Pipeline, Snapshots,")
    (tmp_path / "words.py").write_text(text)
    yield made
    made.close()


def declared(place: Place) -> int:
    """The number of the last declared epoch."""
    found = place.connection.execute(f'SELECT number FROM "{place.name}".declared_epoch').fetchone()
    return 0 if found is None else int(found[0])


def orders(place: Place) -> int:
    """How many orders are not settled."""
    found = place.connection.execute(f'SELECT count(*) FROM "{place.name}".map_order WHERE refusal IS NULL').fetchone()
    return 0 if found is None else int(found[0])


def counting(looking: ClusterOffice) -> list[SeenInterval]:
    """The intervals of Count, by their keys."""
    return [found for found in looking.look().intervals if found.computation == "Count"]


def until_opened(place: Place, partitions: int) -> None:
    """Wait until so many files were found: what is in the last of them runs, and no epoch has it yet."""

    def found() -> bool:
        return place.connection.execute(f'SELECT count(*) FROM "{place.name}".source').fetchone() == (partitions,)

    until(found)


def test_kills_in_the_middle_of_epochs_lose_and_double_nothing(place: Place) -> None:
    kept = [place.directory / f"{number}.jsonl" for number in (1, 2)]
    for file in kept:
        file.rename(file.with_suffix(".kept"))
    cluster = place.up("--workers", "2", sleep_s=0.004, TAIL="1")  # it does not end by itself
    place.until_counted(1 / 3)
    assert place.owners() == {"worker-1", "worker-2"}
    before = declared(place)
    for number, (file, victim) in enumerate(zip(kept, ("worker-1", "controller-1"), strict=True), 2):
        file.with_suffix(".kept").rename(file)
        until_opened(place, number)
        (process,) = children(cluster.pid, victim)
        os.kill(process, signal.SIGKILL)
        place.until_counted(number / 3)
    until(lambda: place.rows() == place.expected)
    assert declared(place) > before
    cluster.send_signal(signal.SIGINT)
    status, out = ended(cluster)
    assert status == 130, out
    assert "worker-1 was killed by SIGKILL; it is started again" in out
    assert "controller-1 was killed by SIGKILL; it is started again" in out
    status, out = ended(place.up("--workers", "1"))  # the files are not tailed any more, and nothing is left to do
    assert status == 0, out
    assert place.rows() == place.expected


def test_a_worker_that_was_stopped_for_longer_than_its_lease_joins_again(place: Place) -> None:
    kept = place.directory / "2.jsonl"
    kept.rename(kept.with_suffix(".kept"))
    cluster = place.up("--workers", "2", TAIL="1")
    place.until_counted(2 / 3)
    (worker,) = children(cluster.pid, "worker-2")
    os.kill(worker, signal.SIGSTOP)
    until(lambda: place.owners() == {"worker-1"})
    kept.with_suffix(".kept").rename(kept)
    place.until_counted(1)
    os.kill(worker, signal.SIGCONT)
    until(lambda: place.owners() == {"worker-1", "worker-2"})  # it has its share again
    assert place.rows() == place.expected
    cluster.send_signal(signal.SIGINT)
    status, out = ended(cluster)
    assert status == 130, out
    assert "worker-2 ended" not in out


def test_a_row_that_the_database_refuses_sends_its_key_to_quarantine_and_the_rest_goes_on(place: Place) -> None:
    kept = place.directory / "2.jsonl"
    kept.rename(kept.with_suffix(".kept"))
    cluster = place.up("--workers", "2", TAIL="1")
    place.until_counted(2 / 3)
    word, before = min(place.rows().items())
    table = sql.Identifier(place.name, "counts")
    with psycopg.connect(place.url, autocommit=True) as connection:
        refusal = sql.SQL("ALTER TABLE {} ADD CONSTRAINT nope CHECK (word <> {}) NOT VALID")
        connection.execute(refusal.format(table, sql.Literal(word)))
    kept.with_suffix(".kept").rename(kept)
    until(lambda: place.rows() == {**place.expected, word: before})
    with Reader(place.url, place.name) as reader:
        assert [(computation, key) for computation, key, _ in reader.quarantined()] == [("Count", word)]
        waiting = reader.quarantine_rows("Count", word)
        assert len(waiting) == place.expected[word] - before
        assert "nope" in waiting[0].error
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT nope").format(table))
        reader.request_redrive("Count", word)
    until(lambda: place.rows() == place.expected)
    cluster.send_signal(signal.SIGINT)
    assert ended(cluster)[0] == 130


def test_intervals_are_split_moved_and_merged_between_two_epochs(place: Place) -> None:
    cluster = place.up("--workers", "2", sleep_s=0.008, TAIL="1")
    place.until_counted(0.1)

    with office(place) as orders:

        def halves() -> list[SeenInterval]:
            return [found for found in counting(orders) if "g" <= found.low < "n"]

        (whole,) = halves()
        orders.split(whole.id, ["j"])
        assert [(half.low, half.high) for half in halves()] == [("g", "j"), ("j", "n")]
        until(lambda: all(found.owner is not None for found in counting(orders)))
        first, second = halves()
        other = "worker-1" if first.owner == "worker-2" else "worker-2"
        orders.move([first.id], other)
        assert {half.id: half.owner for half in halves()}[first.id] == other
        orders.merge([first.id, second.id])
        assert [(half.low, half.high) for half in halves()] == [("g", "n")]
    until(lambda: place.rows() == place.expected)
    cluster.send_signal(signal.SIGINT)
    assert ended(cluster)[0] == 130


@pytest.mark.parametrize(
    "wait_s", [0.3, pytest.param(0.0, marks=pytest.mark.long), pytest.param(1.0, marks=pytest.mark.long)]
)
def test_a_worker_that_is_killed_while_orders_are_carried_out_costs_no_row(place: Place, wait_s: float) -> None:
    cluster = place.up("--workers", "2", sleep_s=0.008, TAIL="1")
    place.until_counted(0.1)

    with office(place) as looked:
        before = counting(looked)
    split = place.command("interval", "split", "words:pipeline", str(before[-1].id), "u")
    move = place.command("interval", "move", "words:pipeline", str(before[0].id), "--to", "worker-2")
    until(lambda: orders(place) > 0)
    time.sleep(wait_s)
    (victim,) = children(cluster.pid, "worker-2")
    os.kill(victim, signal.SIGKILL)
    assert ended(split, 60)[0] == 0  # whoever lives carries it out
    assert ended(move, 60)[0] in (0, 1)  # there may be no worker-2 when it is looked at
    with office(place) as looked:
        assert [found.low for found in counting(looked)] == [*(found.low for found in before), "u"]
    until(lambda: place.rows() == place.expected)
    assert orders(place) == 0
    cluster.send_signal(signal.SIGINT)
    assert ended(cluster)[0] == 130


@pytest.mark.long  # `test_rolling.py` does it under checkpoints for a landing
def test_workers_are_restarted_one_by_one_and_others_are_added_and_taken_away(place: Place) -> None:
    def worker(name: str) -> subprocess.Popen[str]:
        words = ("--name", name, "--lease", f"{LEASE_S:g}")
        return place.command("worker", "words:pipeline", *words, sleep_s=0.008, TAIL="1")

    controller = place.command("controller", "words:pipeline", "--name", "c", "--lease", f"{LEASE_S:g}", TAIL="1")
    running = {name: worker(name) for name in ("w1", "w2")}
    place.until_counted(0.05)
    until(lambda: place.owners() == {"w1", "w2"})
    for name in ("w1", "w2"):
        running[name].send_signal(signal.SIGTERM)
        status, out = ended(running[name])
        assert status == 130, out
        running[name] = worker(name)
        until(lambda: place.owners() == {"w1", "w2"})
    running["w3"] = worker("w3")
    until(lambda: place.owners() == {"w1", "w2", "w3"})
    leaver = running.pop("w1")
    leaver.send_signal(signal.SIGTERM)
    assert ended(leaver)[0] == 130
    until(lambda: place.owners() == {"w2", "w3"})
    until(lambda: place.rows() == place.expected)
    for process in (*running.values(), controller):
        process.send_signal(signal.SIGTERM)
    assert {ended(process)[0] for process in (*running.values(), controller)} == {130}


def test_a_placement_goes_back_and_an_earlier_leader_declares_nothing(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    one, payload = IntervalId(1), StateWrites.of([("a", "", "", b"1")])
    image = Checkpoint(CHECKPOINT_FORMAT, "", 1, [], [], [], payload, TimerWrites(), HoldWrites(), [], [])

    async def log(store: PostgresStore, epoch: int) -> list[int]:
        owner = next(placed for placed in (await store.cluster_map()).intervals if placed.id == one)
        await store.commit([LogWrite(one, owner.sequencer, Seq(epoch), epoch, encode_checkpoint(image))])
        async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
            cursor = await connection.execute(f'SELECT epoch FROM "{pipeline}".checkpoint_log ORDER BY epoch')
            return [epoch for (epoch,) in await cursor.fetchall()]

    async def all_of_it() -> None:
        store = PostgresStore(postgres.url, pipeline)
        try:
            await store.open_pipeline(PipelineShape(pipeline, {"a": ()}, {}, {}, (), ("src",)))
            worker = (await store.join("w", "worker", "w:1", LEASE_US, b"w")).incarnation
            leader = (await store.join("c", "controller", "c:1", LEASE_US, b"c")).incarnation
            led = await store.lead(leader, LEASE_US)
            assert led is not None
            every = Placement(led.epoch, (await store.cluster_map()).version, {one: worker}, {"src": worker}, back=True)
            assert await store.place(every) is not None
            assert await log(store, 1) == [1]
            found = await store.cluster_map()
            owners = {placed.id: placed.sequencer for placed in found.intervals}
            assert found.declared == 0
            assert not await store.declare(Declaration(epoch=1, owners=owners, term=led.epoch + 1))
            assert (await store.cluster_map()).declared == 0
            assert await store.declare(Declaration(epoch=1, owners=owners, term=led.epoch))
            assert (await store.cluster_map()).declared == 1
            assert await log(store, 2) == [1, 2]
            again = Placement(led.epoch, found.version, {one: worker}, {"src": worker}, back=True)
            assert await store.place(again) is not None
            assert await log(store, 2) == [1, 2]  # its own: what the earlier owner had written is gone
            assert not await store.declare(Declaration(epoch=2, owners=owners, term=led.epoch))
        finally:
            await store.close()

    asyncio.run(all_of_it())
