"""Puts requests of one page and hour, and those of the site in one window, together: fewer rows, the same counts.

Runs in Spark, on batches: stretches of the log in its order.  What comes out is exact, late requests included:

* A combined row tells how many requests each window had.  It stands at the place of its first request, with its time. A
  window is open there if it was open for any of its requests, because no request moves to a later place.
* Requests that are late by the declared disorder, seen from their own place in the batch, are combined apart and marked.  The
  stream's watermark cannot be trusted to find them again, because the rows that moved it may be combined too.
* What is late for the stretches before its batch is late at that place, and is found there by the stream's watermark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from examples.zeitgeist.model import HOUR_US, WINDOW_US
from examples.zeitgeist.pipeline import DISORDER_US
from examples.zeitgeist.silence import SLOT_US, SLOTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS_PER_BATCH: Final = 16_384
"""Rows that are combined at a time; more would hardly combine better, for windows end."""

GROUPED: Final = ("batch", "late", "page", "window", "slot")


def combined(rows: DataFrame, batch_rows: int = ROWS_PER_BATCH) -> DataFrame:
    """Columns of `pipeline.Request` from `time_us` and `page` in the log's order: one row for those that belong together.

    One shuffle by batch serves the search for late requests and the combining, another one restores the order.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    placed = rows.withColumn("place", F.monotonically_increasing_id())
    batches = placed.withColumn("batch", F.floor(F.col("place") / batch_rows))
    before = Window.partitionBy("batch").orderBy("place").rowsBetween(Window.unboundedPreceding, 0)
    closed = _start("time_us", WINDOW_US) + WINDOW_US <= F.max("time_us").over(before) - DISORDER_US
    counted = (
        batches.withColumn("late", closed)
        .withColumn("slot", _start("time_us", SLOT_US))
        .withColumn("window", _start("time_us", WINDOW_US))
        # Every request twice: with its page by window, and without by slot.
        .groupingSets([["batch", "late", "page", "window"], ["batch", "late", "slot"]], *GROUPED)
        .agg(
            F.min(F.struct("place", "time_us")).alias("first"),
            F.count("*").cast("int").alias("had"),
            (F.grouping("slot") == 0).alias("is_site"),
        )
        .where("is_site or page is not null")
    )  # fmt: skip
    block = F.when(F.col("is_site"), _start("slot", WINDOW_US)).otherwise(_start("window", HOUR_US))
    at = F.when(F.col("is_site"), (F.col("slot") - F.col("block")) / SLOT_US).otherwise(
        (F.col("window") - F.col("block")) / WINDOW_US
    )
    blocks = (
        counted.withColumn("block", block)
        .groupBy("batch", "late", "is_site", "page", "block")
        .agg(F.min("first").alias("first"), F.collect_list(F.struct(at.cast("int").alias("at"), "had")).alias("counts"))
    )
    last = F.when(F.col("is_site"), SLOTS).otherwise(HOUR_US // WINDOW_US) - 1
    had = F.map_from_entries("counts")
    parts = F.transform(F.sequence(F.lit(0), last), lambda at: F.coalesce(F.element_at(had, at), F.lit(0)))
    ordered = blocks.withColumn("parts", parts).repartition(1).sortWithinPartitions("first.place", "is_site")
    return ordered.select(F.col("first.time_us").alias("time_us"), "page", "parts", "late")


def _start(column: str, length_us: int) -> Column:
    """The start of the stretch of `length_us` that the column's time is in."""
    from pyspark.sql import functions as F

    return F.col(column) - F.pmod(F.col(column), F.lit(length_us))
