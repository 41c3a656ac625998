"""The PySpark job of Zeitgeist on lines of every kind, against the parser of single lines."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from examples.zeitgeist import spark_job
from examples.zeitgeist.logline import Request, is_page_view, parse_line
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
    found = [one for one in read if isinstance(one, Request)]
    assert summary == spark_job.Summary(
        requests=6, malformed=5, first_us=min(r.timestamp_us for r in found),
        last_us=max(r.timestamp_us for r in found), offset_s=-14400,
    )  # fmt: skip
    rows = pyarrow.parquet.read_table(tmp_path / "parsed" / "requests").to_pylist()
    assert Counter((row["time_us"], row["page"]) for row in rows) == Counter(
        (one.timestamp_us, one.path if is_page_view(one) else None) for one in found
    )
    refused = [
        json.loads(line)["line"]
        for part in (tmp_path / "parsed" / "malformed").glob("*.json")
        for line in part.read_text(encoding="utf-8").splitlines()
    ]
    assert refused == [line for line, one in zip(LINES, read, strict=True) if not isinstance(one, Request)]


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
