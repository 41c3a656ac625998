"""Finished files on a real store: never opened again, also after an upgrade, and known when they come back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, TextCoder, ValueCell, subscribe
from millwheel.committed import Committed
from millwheel.host.messages import Open
from millwheel.host.progress import Progress
from millwheel.launch import run
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import FileSource
from millwheel_injectors.identity import Catalog
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.schema.shape_checks import schema_name

pytestmark = pytest.mark.postgres

LINES = Stream("lines", TextCoder())


class Count(Computation[str]):
    """Counts lines."""

    count = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.count.set(self.count.get() + 1)


def build(name: str, paths: Path, **options: Any) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(FileSource("files", paths, **options), into=LINES)
    pipeline.add(Count, [subscribe(LINES, key=str)])
    return pipeline


def read(postgres: EmbeddedPostgres, name: str, paths: Path) -> Progress:
    return run(build(name, paths), postgres.url)


def counts(postgres: EmbeddedPostgres, name: str, paths: Path) -> dict[str, int]:
    with Committed(build(name, paths), postgres.url) as committed:
        return {key: cells["count"] for key, cells in committed.states("Count")}


def write(paths: Path, *names: str) -> None:
    paths.mkdir(exist_ok=True)
    for name in names:
        (paths / name).write_text(f"{name}\n")


def test_finished_files_are_not_opened_again(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in", *"abcdefgh")
    assert read(postgres, pipeline, tmp_path / "in").injected == 8
    opened: list[str] = []
    looked: list[str] = []
    real, look = PostgresStore.open_source, Catalog.look

    async def opening(self: PostgresStore, source: str, states: dict[str, bytes]) -> Any:
        opened.extend(states)
        return await real(self, source, states)

    monkeypatch.setattr(PostgresStore, "open_source", opening)

    def looking(self: Catalog, listed: Any) -> Any:
        looked.append(listed.path)
        return look(self, listed)

    monkeypatch.setattr(Catalog, "look", looking)
    write(tmp_path / "in", "new")
    assert read(postgres, pipeline, tmp_path / "in").injected == 1
    assert (len(opened), looked) == (1, ["new"])
    assert read(postgres, pipeline, tmp_path / "in").finished
    assert counts(postgres, pipeline, tmp_path / "in") == dict.fromkeys([*"abcdefgh", "new"], 1)


def test_what_was_finished_before_there_were_signs_is_not_read_again(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path
) -> None:
    write(tmp_path / "in", *"abcd")
    read(postgres, pipeline, tmp_path / "in")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (schema_name(pipeline),))
        connection.execute("DROP TABLE source_sign")
        connection.execute("ALTER TABLE source DROP COLUMN signed")
        connection.execute("DELETE FROM migration WHERE version > 6")
        connection.execute(
            "UPDATE source SET state = convert_to((convert_from(state, 'UTF8')::jsonb #- '{identity,size}' "
            "#- '{identity,mtime_ns}')::text, 'UTF8')"
        )
    assert read(postgres, pipeline, tmp_path / "in").injected == 0
    write(tmp_path / "in", "new")
    assert read(postgres, pipeline, tmp_path / "in").injected == 1
    assert counts(postgres, pipeline, tmp_path / "in") == dict.fromkeys([*"abcd", "new"], 1)
    with psycopg.connect(postgres.url) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (schema_name(pipeline),))
        unsigned = connection.execute("SELECT count(*) FROM source WHERE NOT signed").fetchone()
        assert unsigned == (0,)


def test_a_finished_file_that_comes_back_is_not_read_again(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path
) -> None:
    write(tmp_path / "in", "a", "b")
    read(postgres, pipeline, tmp_path / "in")
    (tmp_path / "in" / "a").rename(tmp_path / "away")
    assert read(postgres, pipeline, tmp_path / "in").injected == 0
    (tmp_path / "away").rename(tmp_path / "in" / "under another name")
    assert read(postgres, pipeline, tmp_path / "in").injected == 0
    assert counts(postgres, pipeline, tmp_path / "in") == {"a": 1, "b": 1}


def test_a_run_that_tails_forgets_what_it_has_read(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> None:
    write(tmp_path / "in", *"abcdef")
    made = build(pipeline, tmp_path / "in", tail=True, quiet_us=0)

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        embedded = EmbeddedRun(made.graph(), store, {})
        task = asyncio.create_task(embedded.run())
        limit = time.monotonic() + 180
        while embedded.progress().injected < 7 or len(embedded.worker.actors.all) > 1:
            if embedded.progress().injected == 6:
                write(tmp_path / "in", "later")
            assert time.monotonic() < limit, embedded.worker.actors.all
            await asyncio.sleep(0.05)
        partitions = embedded.worker.partitions
        assert (partitions._ending, partitions._tails, partitions._positions, partitions._feeds["files"]._parts) == (
            [],
            {},
            {},
            {},
        )
        told = [message for message in embedded.worker._restated.all() if isinstance(message, Open)]
        assert (told, embedded._user.partitions) == ([Open("source:files", ())], {})
        embedded.stop()
        await task
        await store.close()

    asyncio.run(main())
    assert counts(postgres, pipeline, tmp_path / "in") == dict.fromkeys([*"abcdef", "later"], 1)


def test_a_run_that_tails_reads_on_in_a_longer_copy_that_replaces_its_file(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path
) -> None:
    log, copy = tmp_path / "a.log", tmp_path / ".copy"
    log.write_text("a\nb\n")
    made = build(pipeline, tmp_path, tail=True)

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        embedded = EmbeddedRun(made.graph(), store, {})
        task = asyncio.create_task(embedded.run())

        async def injected(count: int) -> None:
            limit = time.monotonic() + 180
            while embedded.progress().injected < count:
                assert time.monotonic() < limit, embedded.progress()
                await asyncio.sleep(0.05)

        await injected(2)
        for more in ("c", "d"):
            copy.write_text(f"{log.read_text()}{more}\n")
            copy.replace(log)
            await injected(ord(more) - ord("a") + 1)
        with log.open("a") as file:
            file.write("e\n")
        await injected(5)
        embedded.stop()
        await task
        await store.close()

    asyncio.run(main())
    assert counts(postgres, pipeline, tmp_path) == dict.fromkeys("abcde", 1)
