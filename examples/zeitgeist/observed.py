"""What the Spark job wrote, counted again per window for the pictures of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from examples.zeitgeist.detector import Scope
from examples.zeitgeist.model import WINDOW_US


def window_end(time_us: int) -> int:
    """End of the window that holds `time_us`."""
    return time_us - time_us % WINDOW_US + WINDOW_US


def windows_by_key(directory: Path, wanted: Collection[tuple[Scope, str]]) -> dict[tuple[Scope, str], dict[int, int]]:
    """Requests per window of the `wanted` keys, from the Parquet files in `directory`."""
    import pyarrow.parquet as parquet

    counts: dict[tuple[Scope, str], dict[int, int]] = {key: Counter() for key in wanted}
    site = counts.get(("site", ""))
    for file in sorted(directory.glob("part-*.parquet")):
        for batch in parquet.ParquetFile(file).iter_batches(columns=["time_us", "page"]):
            columns = batch.to_pydict()
            for time_us, page in zip(columns["time_us"], columns["page"], strict=True):
                start_us = time_us - time_us % WINDOW_US
                if site is not None:
                    site[start_us] += 1
                found = counts.get(("page", page))
                if found is not None:
                    found[start_us] += 1
    return counts
