"""The progress of a run, in words and as fields.

Lives here: what is said of it.  Never here: where and how it is printed (`lines`, `display`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millwheel.limits import STORE_SILENT_S
from millwheel.model import MIN_TIME, SECOND, format_time
from millwheel.wording import counted

if TYPE_CHECKING:
    from millwheel.host.progress import Progress


def summary(progress: Progress, rate: float | None = None) -> str:
    """A report on one line; `rate` in rows a second."""
    watermark = min(progress.watermarks.values(), default=MIN_TIME)
    parts = [f"{counted(progress.injected, 'row')} in" + (f" {rate:,.0f}/s" if rate is not None else "")]
    parts += [counted(progress.records, "record"), f"watermark {format_time(watermark)}"]
    parts += [f"lag {lag(progress)}"] if progress.lag_us is not None else []
    parts += [f"{name} {count:,}" for name, count in noted(progress).items() if count]
    parts += [waits] if (waits := awaited(progress)) else []
    return ", ".join(parts)


def figures(progress: Progress, rate: float | None = None) -> dict[str, Any]:
    """A report as fields: counts since the start of the process, rows a second, times in us."""
    return {
        "rows": progress.injected, "records": progress.records, "rows_a_second": None if rate is None else round(rate, 1),
        "lag_us": progress.lag_us, "late": progress.late, "rejected": progress.rejected, "repeated": progress.repeated,
        "quarantined_keys": progress.in_quarantine, "redriven": progress.redriven,
        "checkpoints": progress.checkpoints, "watermarks_us": dict(progress.watermarks),
        "store_wait_s": round(progress.store_wait_s, 1),
    }  # fmt: skip


def lag(progress: Progress) -> str:
    """Event time by which the slowest computation is behind its sources; "-" while there is none."""
    return "-" if progress.lag_us is None else f"{max(0, progress.lag_us) / SECOND:,.1f} s"


def awaited(progress: Progress) -> str:
    """For how long Postgres has not answered, if that is long."""
    waited_s = progress.store_wait_s
    return f"waiting for Postgres for {waited_s:,.0f} s" if waited_s > STORE_SILENT_S else ""


def noted(progress: Progress) -> dict[str, int]:
    """What is said only when there is some."""
    return {
        "late": progress.late, "rejected": progress.rejected, "repeated": progress.repeated,
        "quarantined keys": progress.in_quarantine, "redriven": progress.redriven,
    }  # fmt: skip
