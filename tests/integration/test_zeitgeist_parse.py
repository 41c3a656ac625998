"""The PySpark job of Zeitgeist on lines of every kind, against the parser of single lines."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from examples.zeitgeist import combine, spark_job
from examples.zeitgeist.logline import LoggedRequest, is_page_view, parse_line
from examples.zeitgeist.model import HOUR_US, HOUR_WINDOWS, WINDOW_US
from examples.zeitgeist.pipeline import DISORDER_US
from examples.zeitgeist.silence import SLOTS
from millwheel.spark import archive

LINE = '199.example - - [01/Jul/1995:00:00:01 -0400] "GET /history/apollo/ HTTP/1.0" 200 6245'
LINES = [
    LINE,
    LINE + "\r",
    LINE.replace("/history/apollo/", "/caf\xe9?x=1"),
    LINE.replace("GET", "POST"),
    LINE.replace(" 200 ", " 304 "),
    LINE.replace("00:00:01", "23:59:59"),
    "nonsense",
    LINE.replace("01/Jul", "31/Jun"),
    LINE.replace("GET", "k\x83\xfb\x03tx"),
    LINE.replace("00:00:01", "24:00:01"),
    LINE.replace("/history/apollo/ HTTP/1.0", ""),
]


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[str | None, int, bool]]:
    """Requests per page (None: the site), window and whether they are late, of combined rows."""
    counts: Counter[tuple[str | None, int, bool]] = Counter()
    for row in rows:
        time_us, page, late = row["time_us"], row["page"], row["late"]
        assert len(row["parts"]) == (SLOTS if page is None else HOUR_WINDOWS)
        for at, had in enumerate(row["parts"]):
            window = time_us - time_us % WINDOW_US if page is None else time_us - time_us % HOUR_US + at * WINDOW_US
            counts[page, window, late] += had
    return +counts


def windows_of(requests: Iterable[tuple[int, str | None]]) -> Counter[tuple[str | None, int, bool]]:
    """The same, of requests in the log's order, of one batch."""
    counts: Counter[tuple[str | None, int, bool]] = Counter()
    newest = 0
    for time_us, page in requests:
        newest = max(newest, time_us)
        window = time_us - time_us % WINDOW_US
        late = window + WINDOW_US <= newest - DISORDER_US
        for key in {page, None}:
            counts[key, window, late] += 1
    return counts


@pytest.fixture
def spark() -> Iterator[Any]:
    session = spark_job.session(archive.options())
    yield session
    session.stop()


@pytest.mark.spark
def test_the_job_reads_each_line_as_the_parser_does(tmp_path: Path) -> None:
    log = tmp_path / "access.log.gz"
    log.write_bytes(gzip.compress("\n".join([*LINES, ""]).encode("latin-1")))
    summary = spark_job.parse_log(log, tmp_path / "parsed")
    read = [parse_line(line.removesuffix("\r")) for line in LINES]
    found = [one for one in read if isinstance(one, LoggedRequest)]
    assert summary == spark_job.Summary(
        requests=6, malformed=5, first_us=min(r.timestamp_us for r in found),
        last_us=max(r.timestamp_us for r in found), offset_s=-14400,
    )  # fmt: skip
    rows = pyarrow.parquet.read_table(tmp_path / "parsed" / "requests").to_pylist()
    assert counted(rows) == windows_of((one.timestamp_us, one.path if is_page_view(one) else None) for one in found)
    refused = [
        json.loads(line)["line"]
        for part in (tmp_path / "parsed" / "malformed").glob("*.json")
        for line in part.read_text(encoding="utf-8").splitlines()
    ]
    assert refused == [line for line, one in zip(LINES, read, strict=True) if not isinstance(one, LoggedRequest)]


@pytest.mark.spark
def test_combining_keeps_every_count_and_what_is_late(spark: Any) -> None:
    """Out of order by up to a quarter of an hour, a minute of which is declared."""
    dice = random.Random(5)
    start_us, pages = 806_000_000_000_000 - 806_000_000_000_000 % HOUR_US, ["/a", "/b", "/c", None]
    seconds = [at // 2 - dice.choice([0, 0, 0, 5, 40, 300, 900]) for at in range(20_000)]
    requests = [(start_us + second * 1_000_000, dice.choice(pages)) for second in seconds]
    frame = spark.createDataFrame(requests, "time_us long, page string").coalesce(1)

    whole = [row.asDict() for row in combine.combined(frame).collect()]
    assert counted(whole) == windows_of(requests[: combine.ROWS_PER_BATCH]) + windows_of(
        requests[combine.ROWS_PER_BATCH :]
    )
    assert {late for _, _, late in counted(whole)} == {False, True}
    assert len(whole) < len(requests) / 10

    by_500 = [row.asDict() for row in combine.combined(frame, batch_rows=500).collect()]
    batches = [windows_of(requests[at : at + 500]) for at in range(0, len(requests), 500)]
    assert counted(by_500) == sum(batches, Counter())

    frame = spark.createDataFrame(requests[:500], "time_us long, page string").coalesce(1)
    check_places([row.asDict() for row in combine.combined(frame).collect()], requests[:500])


def check_places(rows: list[dict[str, Any]], requests: list[tuple[int, str | None]]) -> None:
    """Rows of one batch stand in the order of their first requests: no request has moved to a later place."""
    first: dict[tuple[int, str | None], int] = {}
    for at, (time_us, page) in enumerate(requests):
        for key in {page, None}:
            first.setdefault((time_us, key), at)
    places = [first[row["time_us"], row["page"]] for row in rows]
    assert places == sorted(places)
    assert len(places) > 3


@pytest.mark.spark
def test_a_line_is_parsed_once_in_each_pass(spark: Any, tmp_path: Path) -> None:
    """Filters below the observation made Spark apply the regular expressions about thirty times to a line."""
    from pyspark.sql import Observation

    log = tmp_path / "access.log"
    log.write_text(LINE + "\n", encoding="latin-1")
    lines = spark_job.observed(spark_job.parsed(spark, str(log)), Observation("lines"))
    for kind in (spark_job.requests, spark_job.malformed):
        plan = kind(lines)._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("regexp_replace") == 2  # the line ending, and the line
