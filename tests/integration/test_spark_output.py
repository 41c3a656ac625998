"""The Spark injector against what a real Spark writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel.spark import archive
from millwheel.spark.java import LEAN_JVM, ensure_java
from millwheel_injectors import BoundedDisorder, Exact, SparkOutputSource
from tests.unit.injectors.drain import read_all, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

T = 1_700_000_000_000_000


class Row(msgspec.Struct):
    user: str
    n: int
    ts: int


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    ensure_java()
    sql = pytest.importorskip("pyspark.sql")
    builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", f"{LEAN_JVM} {archive.options()}")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "3")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def frame(spark: Any, first: int, last: int, parts: int) -> Any:
    from pyspark.sql import functions as f

    user, at = f.concat(f.lit("u"), f.col("id") % 7), f.timestamp_micros(f.lit(T) + f.col("id") * 1000)
    return spark.range(first, last, 1, parts).select(user.alias("user"), f.col("id").alias("n"), at.alias("ts"))


def read_numbers(source: SparkOutputSource) -> dict[str, list[int]]:
    """The column n by partition; and every row number must be the row's place."""
    found = {}
    for partition in source.discover(()):
        rows = rows_of(read_all(partition, 100))
        assert [row for row, _, _ in rows] == list(range(len(rows)))
        assert all(time == T + number_of(value) * 1000 for _, value, time in rows)
        found[partition.name] = [number_of(value) for _, value, _ in rows]
    return found


def number_of(value: Any) -> int:
    number: int = value["n"] if isinstance(value, dict) else value.n
    return number


@pytest.mark.parametrize("stamps", ["INT96", "TIMESTAMP_MICROS"])
def test_batch_parquet(spark: Any, tmp_path: Path, stamps: str) -> None:
    spark.conf.set("spark.sql.parquet.outputTimestampType", stamps)
    out = tmp_path / "out"
    frame(spark, 0, 1000, 3).write.parquet(str(out))
    (out / "_SUCCESS").rename(tmp_path / "_SUCCESS")
    waiting = SparkOutputSource("s", out, "ts", BoundedDisorder(0), type=Row, tail=True, ordered=True)
    assert waiting.discover(()) == []
    (tmp_path / "_SUCCESS").rename(out / "_SUCCESS")
    assert [n for part in read_numbers(waiting).values() for n in part] == list(range(1000))
    bounds = [p.watermark() for p in SparkOutputSource("s", out, "ts", Exact(), type=Row).discover(())]
    assert bounds == [T, T + 333_000, T + 666_000]


def test_batch_json_with_directory_columns_and_gzip(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    out = tmp_path / "out"
    rows = frame(spark, 0, 300, 2).withColumn("day", f.col("n") % 3)
    rows.write.partitionBy("day").option("compression", "gzip").json(str(out))
    source = SparkOutputSource("s", out, "ts", Exact())
    found = read_numbers(source)
    assert len(found) == 6
    assert sorted(n for part in found.values() for n in part) == list(range(300))
    assert all(n % 3 == int(name[len("day=")]) for name, part in found.items() for n in part)


class Stream:
    """A streaming query from a directory of Parquet files to a directory, one file a batch."""

    def __init__(self, spark: Any, place: Path, kind: str) -> None:
        self.spark, self.kind = spark, kind
        self.input, self.out, self.checkpoint = place / "in", place / "out", place / "checkpoint"
        self.fed = 0
        self.feed()

    def feed(self) -> None:
        """100 more rows, as one file."""
        rows = frame(self.spark, self.fed * 100, self.fed * 100 + 100, 1)
        rows.write.mode("append").parquet(str(self.input))
        self.fed += 1

    def start(self, **trigger: Any) -> Any:
        source = self.spark.readStream.schema("user string, n long, ts timestamp").option("maxFilesPerTrigger", 1)
        rows = source.parquet(str(self.input)).repartition(2)
        writer = rows.writeStream.format(self.kind).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start(str(self.out))

    def run(self) -> None:
        """All that was fed, then stop."""
        query = self.start(availableNow=True)
        query.awaitTermination()
        assert query.exception() is None


@pytest.mark.parametrize("kind", [pytest.param("parquet", marks=pytest.mark.long), "json"])
def test_a_streaming_sink_with_a_replayed_batch_and_leftovers(spark: Any, tmp_path: Path, kind: str) -> None:
    stream = Stream(spark, tmp_path, kind)
    for _ in range(7):
        stream.feed()
    stream.run()
    log = stream.out / "_spark_metadata"
    assert {"2.compact", "5.compact", "7"} <= {path.name for path in log.iterdir()}
    before = read_numbers(SparkOutputSource("s", stream.out, "ts"))
    assert sorted(n for part in before.values() for n in part) == list(range(800))

    # As after a crash between a batch's files and its commit: the batch is replayed, its first files stay on disk.
    for uncommitted in (
        log / "7",
        log / ".7.crc",
        stream.checkpoint / "commits" / "7",
        stream.checkpoint / "commits" / ".7.crc",
    ):
        uncommitted.unlink(missing_ok=True)
    (stream.out / f"part-00000-left-over.{kind}").write_bytes(next(stream.out.glob(f"part-*.{kind}")).read_bytes())
    stream.feed()
    stream.run()
    assert (log / "8.compact").exists()

    for source in (SparkOutputSource("s", stream.out, "ts"), SparkOutputSource("s", stream.out, "ts", tail=True)):
        found = read_numbers(source)
        assert sorted(n for part in found.values() for n in part) == list(range(900))
        assert len(found) < len(list(stream.out.glob(f"part-*.{kind}")))


def test_tailing_while_the_query_runs(spark: Any, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, "parquet")
    source = SparkOutputSource("s", stream.out, "ts", BoundedDisorder(0), type=Row, tail=True)
    assert source.discover(()) == []
    query = stream.start(processingTime="200 milliseconds")
    seen: list[int] = []
    known: set[str] = set()

    def poll() -> bool:
        for partition in source.discover(known):
            known.add(partition.name)
            seen.extend(value.n for _, value, _ in rows_of(read_all(partition)))
        return len(seen) == stream.fed * 100

    try:
        for _ in range(6):
            wait_for(poll, query)
            stream.feed()
        wait_for(poll, query)
    finally:
        query.stop()
    assert sorted(seen) == list(range(700))
    assert not source.complete()
    assert list((stream.out / "_spark_metadata").glob("*.compact"))


def wait_for(done: Callable[[], bool], query: Any) -> None:
    deadline = time.monotonic() + 240
    while not done():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "the rows did not appear"
        time.sleep(0.05)
