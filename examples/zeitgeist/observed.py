"""What the Spark job wrote, counted again per window for the pictures of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from examples.zeitgeist.detector import Scope
from examples.zeitgeist.model import HOUR_US, WINDOW_US
from examples.zeitgeist.silence import SLOT_US


def input_end(time_us: int) -> int:
    """End of an input whose last request is at `time_us`: the end of its slot."""
    return time_us - time_us % SLOT_US + SLOT_US


def windows_by_key(directory: Path, wanted: Collection[tuple[Scope, str]]) -> dict[tuple[Scope, str], dict[int, int]]:
    """Requests per window of the `wanted` keys, from the Parquet files in `directory`."""
    import pyarrow.parquet as parquet

    counts: dict[tuple[Scope, str], dict[int, int]] = {key: Counter() for key in wanted}
    for file in sorted(directory.glob("part-*.parquet")):
        for batch in parquet.ParquetFile(file).iter_batches(columns=["time_us", "page", "parts", "late"]):
            for time_us, page, parts, late in zip(*batch.to_pydict().values(), strict=True):
                windows = counts.get(("site", "") if page is None else ("page", page))
                if windows is None or late:
                    continue
                if page is None:
                    windows[time_us - time_us % WINDOW_US] += sum(parts)
                    continue
                for at, had in enumerate(parts):
                    if had:
                        windows[time_us - time_us % HOUR_US + at * WINDOW_US] += had
    return counts
