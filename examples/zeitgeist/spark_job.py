"""The PySpark job: raw Common Log Format to Parquet that the Spark injector reads.

Rows are in the order of the log, and each stands for the requests that `combine` has put together.  What is not
Common Log Format goes to `malformed/` with its text, and is counted.  The parse agrees with `logline.parse_line`; a
test holds the two against each other.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from examples.zeitgeist import combine, logline
from examples.zeitgeist.logfile import check_unchanged, gzip_fault, look_at
from examples.zeitgeist.results import write_whole
from millwheel.errors import SourceError
from millwheel.spark import archive
from millwheel.spark.java import LEAN_JVM, ensure_java

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

ROWS_PER_FILE = 250_000


EMPTY_RULE = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
MARK = "\x00"
"""Separates the groups of a parsed line."""

GROUPS = tuple(f"${group}" for group in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 12))
"""Day, month, year, hour, minute, second, sign, offset hours and minutes, method, status, path."""


class Summary(msgspec.Struct, frozen=True):
    """What the job found; written last, so its presence says that the output is whole."""

    requests: int
    malformed: int
    first_us: int
    last_us: int
    offset_s: int


def parse_log(log: Path, out: Path) -> Summary:
    """Parse `log` into `out`/requests unless an earlier run has finished it; returns the summary.

    What is in `out` is of this log: the caller sees to that (`results.claim`).  `SourceError` for a log that cannot be
    read to its end, or holds no request.
    """
    done = out / "summary.json"
    if done.exists():
        return msgspec.json.decode(done.read_bytes(), type=Summary)
    before = look_at(log)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    summary = _run_job(log, out)
    check_unchanged(log, before)
    write_whole(done, msgspec.json.encode(summary))
    return summary


def session(jvm: str) -> SparkSession:
    """A local Spark session that says nothing: what fails comes back as an exception, once and without Java's stack.

    `jvm` are further options for its JVM.
    """
    ensure_java()
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("zeitgeist")
        .config("spark.driver.extraJavaOptions", f"{LEAN_JVM} {jvm}")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.files.maxRecordsPerFile", str(ROWS_PER_FILE))
        .config("spark.sql.ansi.enabled", "false")
        # Where nothing is left to shuffle, the rest of the plan stays: it gathers the figures of the lines.
        .config("spark.sql.adaptive.optimizer.excludedRules", EMPTY_RULE)
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    spark: SparkSession = builder.getOrCreate()
    return spark


def _run_job(log: Path, out: Path) -> Summary:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import Observation

    recorder = archive.Recorder()
    spark = session(recorder.options)
    try:
        # The figures are gathered on the way: a gzip file is read by one core, so a second pass would cost as much.
        seen = Observation("lines")
        lines = observed(parsed(spark, str(log)), seen)
        combine.combined(requests(lines)).write.parquet(str(out / "requests"))
        figures = seen.get
        if figures["malformed"]:
            malformed(lines).write.json(str(out / "malformed"))
        recorder.succeeded()
    except (PySparkException, Py4JError) as error:
        raise SourceError(f"{log} {gzip_fault(log) or f'cannot be parsed by Spark: {_cause(error)}'}") from error
    finally:
        spark.stop()
        recorder.end()
    if not figures["requests"]:
        lines = figures["malformed"]
        raise SourceError(f"{log} holds no line in Common Log Format: none of its {lines:,} lines is one")
    return Summary(**figures)


def _cause(error: Exception) -> str:
    """The first line of what is at the bottom of an error of Spark's; the rest is Java's stack."""
    cause = getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return str(error if cause is None else cause.toString()).partition("\n")[0]


def parsed(spark: SparkSession, path: str) -> DataFrame:
    """Columns ok, line, time_us, page, offset_s of every line, in the log's order."""
    from pyspark.sql import functions as F

    raw = spark.read.text(path)
    # Spark keeps the bytes of a text line as they are: read them as Latin-1, which every byte is valid in.
    line = F.regexp_replace(F.decode(F.col("value").cast("binary"), "ISO-8859-1"), "\r$", "")
    # One regular expression per line: a match becomes its groups, joined; the path, which may hold anything, is last.
    joined = F.regexp_replace("line", "^(?s)" + logline.PATTERN.pattern + "$", MARK + MARK.join(GROUPS))
    groups = F.split("joined", MARK, len(GROUPS) + 1).alias("g")
    fields = raw.select(line.alias("line")).select("line", joined.alias("joined")).select("line", "joined", groups)
    matches = F.col("joined").startswith(MARK) & (F.size("g") == len(GROUPS) + 1)
    timed = fields.select("line", "g", F.when(matches, _time_us()).alias("time_us"), _offset_s().alias("offset_s"))
    counts = (F.col("g")[10] == "GET") & (F.col("g")[11].cast("int") < 400)
    ok = F.col("time_us").isNotNull()
    return timed.select(
        ok.alias("ok"), "line", "time_us", F.when(ok & counts, F.col("g")[12]).alias("page"),
        F.when(ok, F.col("offset_s")).alias("offset_s"),
    )  # fmt: skip


def observed(rows: DataFrame, seen: Observation) -> DataFrame:
    """The same lines; `seen` gets the figures of a `Summary` when they have passed.

    Filters belong behind this.  Spark takes none past an observation.  Past the columns of `parsed` it would take it, and
    compute them again for each place in which the filter needs them.  A pass over the lines then took 2.5 times as long.
    """
    from pyspark.sql import functions as F

    return rows.observe(
        seen,
        F.count_if("ok").alias("requests"),
        F.count_if(~F.col("ok")).alias("malformed"),
        F.min("time_us").alias("first_us"),
        F.max("time_us").alias("last_us"),
        F.min("offset_s").alias("offset_s"),
    )


def requests(lines: DataFrame) -> DataFrame:
    """Columns time_us, page of the lines that are requests."""
    return lines.where("ok").select("time_us", "page")


def malformed(lines: DataFrame) -> DataFrame:
    """Column line of the others."""
    return lines.where("not ok").select("line")


def _offset_s() -> Column:
    from pyspark.sql import functions as F

    seconds = F.col("g")[8].cast("int") * 3600 + F.col("g")[9].cast("int") * 60
    return F.when(F.col("g")[7] == "-", -seconds).otherwise(seconds)


def _time_us() -> Column:
    from pyspark.sql import functions as F

    month = F.create_map(*[F.lit(x) for i, name in enumerate(logline.MONTHS) for x in (name, i + 1)])[F.col("g")[2]]
    hour, minute, second = (F.col("g")[i].cast("int") for i in (4, 5, 6))
    day = F.make_date(F.col("g")[3].cast("int"), month, F.col("g")[1].cast("int"))
    valid = (hour < 24) & (minute < 60) & (second < 60)
    seconds = F.unix_date(day).cast("long") * 86_400 + hour * 3_600 + minute * 60 + second - _offset_s()
    return F.when(valid, seconds * 1_000_000)
