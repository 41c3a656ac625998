"""Files of a sink: each row in one file, once, whenever pipeline and writer are killed; look-ups in a real table."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from click.testing import CliRunner

from millwheel import MsgpackCoder, Pipeline, Stream
from millwheel.errors import StoreError
from millwheel.launch import run
from millwheel.library import Enriched, Flow, LookUp, hours
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.lookup import PostgresQuery
from millwheel_storage.part_files import PartFiles, main

pytestmark = pytest.mark.postgres


class Visit(msgspec.Struct, frozen=True):
    page: str
    number: int
    share: float
    day: str


COLUMNS = {"page": "text", "number": "bigint", "share": "double precision", "day": "date"}
VISITS = Stream("visits", MsgpackCoder(Visit))


def visits(name: str, count: int, rows: int) -> Pipeline:
    pipeline = Pipeline(name)
    values = [(Visit("ab"[n % 2], n, n / 2, "2026-01-02"), n) for n in range(count)]
    Flow(pipeline).inject(IterableSource("visits", values), into=VISITS).to_files("dump", Visit, rows=rows)
    return pipeline


def numbers(directory: Path) -> list[int]:
    """Of all files, put together as `cat` does."""
    together = b"".join(path.read_bytes() for path in sorted(directory.glob("*.jsonl")))
    *lines, rest = together.split(b"\n")
    assert rest == b"", "a line without its end"
    return [json.loads(line)["number"] for line in lines]


def left(url: str, pipeline: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            f'SELECT (SELECT count(*) FROM "{pipeline}".dump_rows) + (SELECT count(*) FROM "{pipeline}".dump_parts)'.encode()
        ).fetchone()
    assert found is not None
    return int(found[0])


def test_lines_and_what_is_left(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> None:
    run(visits(pipeline, 25, 10), postgres.url)
    paths = PartFiles(postgres.url, pipeline, "dump", tmp_path).write()
    assert [path.name for path in paths] == [f"dump-0-0000000{n}.jsonl" for n in range(3)]
    assert numbers(tmp_path) == [*range(25)]
    assert json.loads(paths[0].read_text().splitlines()[1]) == {
        "page": "b", "number": 1, "share": 0.5, "day": "2026-01-02",
    }  # fmt: skip
    assert left(postgres.url, pipeline) == 0
    assert PartFiles(postgres.url, pipeline, "dump", tmp_path).write() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in paths]


def test_a_writer_leaves_to_another_one_the_part_that_this_one_writes(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(visits(pipeline, 25, 10), postgres.url)
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=5s")
    with psycopg.connect(postgres.url) as other:
        other.execute(f'SELECT FROM "{pipeline}".dump_parts WHERE part = 0 FOR UPDATE'.encode())
        paths = [*PartFiles(postgres.url, pipeline, "dump", tmp_path).write()]
        assert [path.name for path in paths] == ["dump-0-00000001.jsonl", "dump-0-00000002.jsonl"]
    assert len(PartFiles(postgres.url, pipeline, "dump", tmp_path).write()) == 1
    assert numbers(tmp_path) == [*range(25)]


def test_parquet_has_the_types_of_its_columns(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run(visits(pipeline, 25, 10), postgres.url)
    options = [part for name, kind in COLUMNS.items() for part in ("--column", f"{name}:{kind}")]
    result = CliRunner().invoke(main, [postgres.url, pipeline, "dump", str(tmp_path), *options])
    assert result.exit_code == 0, result.output
    tables = [parquet.read_table(line) for line in result.output.splitlines()]
    assert [str(kind) for kind in tables[0].schema.types] == ["string", "int64", "double", "date32[day]"]
    assert [number for table in tables for number in table["number"].to_pylist()] == [*range(25)]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"pag": "text", "number": "bigint"}, r"no column 'pag'; they have \['day', 'page', 'share'\]"),
     ({"page": "text", "number": "numeric"}, "column 'number' is given as 'numeric'.*bigint")],
)  # fmt: skip
def test_a_column_that_is_not_there_deletes_nothing(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path, wrong: dict[str, str], why: str
) -> None:
    pytest.importorskip("pyarrow.parquet")
    run(visits(pipeline, 5, 10), postgres.url)
    with pytest.raises(StoreError, match=why):
        PartFiles(postgres.url, pipeline, "dump", tmp_path, wrong).write()
    assert left(postgres.url, pipeline) == 6
    (path,) = PartFiles(postgres.url, pipeline, "dump", tmp_path, {"page": "text"}).write()
    assert path.suffix == ".parquet"


def test_a_file_of_another_run_is_not_overwritten(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> None:
    run(visits(pipeline, 5, 10), postgres.url)
    (tmp_path / "dump-0-00000000.jsonl").write_text("something\n")
    with pytest.raises(StoreError, match="move it away"):
        PartFiles(postgres.url, pipeline, "dump", tmp_path).write()
    assert left(postgres.url, pipeline) == 6


def test_a_sink_that_never_was_is_named(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no sink 'dump'"):
        PartFiles(postgres.url, pipeline, "dump", tmp_path).write()


KILLED = """
import os, signal, sys
from pathlib import Path
from millwheel_storage import part_files
point, url, pipeline, directory = sys.argv[1:]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def dies_behind(function):
    def run(*arguments):
        function(*arguments)
        die()
    return run
if point == "half":
    def half(path, rows):
        path.write_text(rows[0][:7])
        die()
    part_files._write_lines = half
elif point == "draft":
    part_files._write_lines = dies_behind(part_files._write_lines)
elif point == "name":
    Path.replace = dies_behind(Path.replace)
else:
    part_files.PartFiles._put = dies_behind(part_files.PartFiles._put)
part_files.PartFiles(url, pipeline, "dump", directory).write()
"""


@pytest.mark.parametrize("point", ["half", "draft", "name", "delete"])
def test_a_writer_that_is_killed_at_this_point_makes_the_same_files_later(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path, point: str
) -> None:
    run(visits(pipeline, 25, 10), postgres.url)
    for _ in range(2):  # twice: the second one meets what the first one has left
        command = [sys.executable, "-c", KILLED, point, postgres.url, pipeline, str(tmp_path)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert numbers(tmp_path) == ([] if point in ("half", "draft") else [*range(10)])
    PartFiles(postgres.url, pipeline, "dump", tmp_path).write()
    assert numbers(tmp_path) == [*range(25)]
    assert left(postgres.url, pipeline) == 0
    assert len(list(tmp_path.iterdir())) == 3


PIPELINE = """
import sys, time
from millwheel import MsgpackCoder, Pipeline, Stream
from millwheel.launch import run
from millwheel.library import Flow
from millwheel_injectors import IterableSource
import msgspec
class Visit(msgspec.Struct, frozen=True):
    page: str
    number: int
name, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
def slowly():
    for n in range(count):
        if n % 50 == 0:
            time.sleep(0.01)
        yield Visit("ab"[n % 2], n), n
pipeline = Pipeline(name)
Flow(pipeline).inject(IterableSource("visits", slowly), into=Stream("visits", MsgpackCoder(Visit))).to_files(
    "dump", Visit, rows=37)
run(pipeline, url)
"""
COUNT = 20_000


class Restarted:
    """A process that is started again whenever it has been killed."""

    def __init__(self, *command: str) -> None:
        self.command = [sys.executable, *command]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def contents(directory: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(directory.glob("*.jsonl")):
        yield path.name, path.read_bytes()


@pytest.mark.chaos
@pytest.mark.slow
def test_kills_of_pipeline_and_writer_at_any_moment(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> None:
    chance = random.Random(5)
    feeder = Restarted("-c", PIPELINE, pipeline, postgres.url, str(COUNT))
    writer = Restarted("-m", "millwheel_storage.part_files", postgres.url, pipeline, "dump", str(tmp_path), "--follow")
    seen: dict[str, bytes] = {}
    kills = {"feeder": 0, "writer": 0}
    deadline = time.monotonic() + 600
    try:
        while feeder.process.poll() != 0:
            assert time.monotonic() < deadline
            time.sleep(chance.uniform(0.05, 1.2))
            for name, data in contents(tmp_path):
                assert seen.setdefault(name, data) == data, f"{name} has changed"
            for who, victim in (("feeder", feeder), ("writer", writer)):
                if victim.process.poll() not in (None, 0) or (chance.random() < 0.5 and kills[who] < 12):
                    if victim.process.poll() is None:
                        kills[who] += 1
                    elif victim.process.poll() == 0:
                        continue
                    victim.kill()
                    victim.start()
    finally:
        feeder.kill()
        writer.kill()
    PartFiles(postgres.url, pipeline, "dump", tmp_path).write()
    found = dict(contents(tmp_path))
    assert {name: found[name] for name in seen} == seen
    assert sorted(numbers(tmp_path)) == [*range(COUNT)]
    assert left(postgres.url, pipeline) == 0
    assert min(kills.values()) >= 3, kills


def test_a_look_up_in_a_table(postgres: EmbeddedPostgres, pipeline: str) -> None:
    class Page(msgspec.Struct, frozen=True):
        title: str

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'CREATE TABLE "titles_{pipeline}" (page text PRIMARY KEY, title text)'.encode())
        connection.execute(f"INSERT INTO \"titles_{pipeline}\" VALUES ('a', 'Home')".encode())
    query = f'SELECT title FROM "titles_{pipeline}" WHERE page = %s'
    lookup = LookUp(lambda: PostgresQuery(postgres.url, query), Page, fresh_for=hours(1))
    made = Pipeline(pipeline)
    values = [(Visit("ab"[n % 2], n, 0.0, ""), n) for n in range(10)]
    chain = Flow(made).inject(IterableSource("visits", values), into=VISITS)
    found: Stream[Enriched[Visit, Page | None]] = Stream("found", MsgpackCoder(Enriched[Visit, Page | None]))
    chain.key_by(lambda v: v.page).look_up(lookup).publish(found)
    run(made, postgres.url)
    from millwheel.committed import Committed

    with Committed(made, postgres.url) as committed:
        rows = [published.value for published in committed.tail(found, 100)]
    assert sorted((e.value.number, e.row and e.row.title) for e in rows) == [
        (n, None if n % 2 else "Home") for n in range(10)
    ]
    assert all(0 <= e.age_us < 3_600_000_000 for e in rows)


def test_a_query_connects_again_when_the_server_was_away(postgres: EmbeddedPostgres) -> None:
    query = PostgresQuery(postgres.url, "SELECT %s::text AS x, pg_backend_pid() AS pid")
    first = query("a")
    assert first is not None
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (first["pid"],))
    second = query("b")
    assert second is not None
    assert (second["x"], second["pid"] == first["pid"]) == ("b", False)
    query.close()
    query.close()
