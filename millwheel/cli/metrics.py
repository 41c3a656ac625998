"""Figures of a process for Prometheus, over HTTP.

Lives here: which figures, and their names.  Never here: how they come about; each is a number of the last progress report, so
that a scrape never looks into a run from another thread.  Invariant: no counter falls while the process lives, because
Prometheus would take that for a new process and count all of it once more.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from millwheel.cli.extras import of_clusters
from millwheel.cli.options import option
from millwheel.errors import ChannelError
from millwheel.escapes import escaped
from millwheel.model import MAX_TIME, MIN_TIME, SECOND
from millwheel.transport.addresses import host_and_port

if TYPE_CHECKING:
    from millwheel.host.progress import Progress

metrics: Final = option(
    "--metrics", metavar="HOST:PORT", help="Where figures for Prometheus are served; nowhere, if not given."
)
"""The option of a command that is one process."""

COUNTS = {
    "injected": "Rows that sources gave.",
    "records": "Records that hooks got.",
    "rejected": "Rows that could not be read, encoded or keyed.",
    "late": "Records that came behind the watermark.",
    "duplicates": "Records that were delivered again, and dropped.",
    "repeated": "Rows whose outside id was taken before, and that were dropped.",
    "checkpoints": "Checkpoints that are durable.",
    "redriven": "Elements of quarantines that a redrive has run.",
}
"""Fields of a report, and what they say.  They are since the start of the process."""

Labels = tuple[str, ...]


LABELLED = {
    "computation_records": ("computation", "Records that the hooks of a computation got."),
    "computation_timers": ("computation", "Timers that the hooks of a computation got."),
    "source_rows": ("source", "Rows that a source gave."),
}
"""The same, with another label than the pipeline."""

COMMITS: Final = "Transactions that made checkpoints durable, and how long they took, as the process sees it."


def _counts(progress: Progress) -> dict[Labels, int]:
    """Every counter of a report, by name and labels."""
    found: dict[Labels, int] = {(field,): getattr(progress, field) for field in (*COUNTS, "commits", "commit_us")}
    for name, part in progress.computations.items():
        found["computation_records", name] = part.records
        found["computation_timers", name] = part.timers
    return found | {("source_rows", name): rows for name, rows in progress.rows.items()}


class Figures:
    """What a scrape is answered with: the newest report."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._newest: Progress | None = None
        self._counts: dict[Labels, int] = {}
        """By the name of a counter and its labels."""

    def update(self, progress: Progress, seconds: float) -> None:
        """Take a report; `seconds` are since the start."""
        counts = {**self._counts}
        for key, count in _counts(progress).items():
            # Rows that are read again after a going back were counted already.
            counts[key] = max(count, counts.get(key, 0))
        # A scrape may be under way in another thread: nothing that it reads changes, and what it finds together fits.
        self._counts = counts
        self._newest = progress

    def collect(self) -> Iterator[Any]:
        """As `prometheus_client` asks a collector."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        def family(name: str, says: str, *labels: str) -> Any:
            return GaugeMetricFamily(f"millwheel_{name}", says, labels=["pipeline", *labels])

        progress, counts = self._newest, self._counts
        if progress is None:
            return
        for field, says in COUNTS.items():
            count = CounterMetricFamily(f"millwheel_{field}", says, labels=["pipeline"])
            count.add_metric([self._pipeline], counts[field,])
            yield count
        for field, (label, says) in LABELLED.items():
            count = CounterMetricFamily(f"millwheel_{field}", says, labels=["pipeline", label])
            for (name, *labels), value in counts.items():
                if name == field:
                    count.add_metric([self._pipeline, *labels], value)
            yield count
        commits = SummaryMetricFamily("millwheel_commit_seconds", COMMITS, labels=["pipeline"])
        commits.add_metric([self._pipeline], counts["commits",], counts["commit_us",] / SECOND)
        yield commits
        bytes_ = family("waiting_bytes", "Bytes of records that have arrived and wait for their hooks.", "computation")
        for name, part in progress.computations.items():
            bytes_.add_metric([self._pipeline, name], part.waiting_bytes)
        yield bytes_
        for name, says in (
            ("cache_bytes", "State of keys in memory, bytes, roughly."),
            ("cache_limit_bytes", "What it may take."),
        ):
            memory = family(name, says)
            memory.add_metric([self._pipeline], getattr(progress, name))
            yield memory
        waiting = family("quarantined_keys", "Keys that are in quarantine now.")
        waiting.add_metric([self._pipeline], progress.in_quarantine)
        yield waiting
        hot = family(
            "hot_key_share", "Share of an interval's records that a key is at least, 0 to 1.", "interval", "key"
        )
        for one in progress.hot_keys:
            hot.add_metric([self._pipeline, str(one.interval), escaped(one.key)], one.permille / 1_000)
        yield hot
        watermark = family("watermark_seconds", "Low watermark, seconds since 1970; none at the ends of time.", "name")
        for name, value in progress.watermarks.items():
            if MIN_TIME < value < MAX_TIME:
                watermark.add_metric([self._pipeline, name], value / SECOND)
        yield watermark
        if progress.lag_us is not None:
            lag = family("lag_seconds", "Event time by which the slowest computation is behind its sources.")
            lag.add_metric([self._pipeline], max(0, progress.lag_us) / SECOND)
            yield lag


def ports_of(address: str | None, workers: int) -> tuple[str, int] | None:
    """The host, and the first of the ports of so many workers, one each; None: nowhere."""
    if address is None:
        return None
    try:
        host, port = host_and_port(address)
    except ChannelError as error:
        raise click.UsageError(f"--metrics: {error}") from error
    if port == 0 or port + workers > 2**16:
        raise click.UsageError(
            f"--metrics {address}: {workers} workers need ports from there on, and not port 0 or above 65535"
        )
    return host, port


def check_free(where: tuple[str, int] | None, workers: int) -> None:
    """Raises `ChannelError` when one of the ports is taken: one error, and not one of a worker again and again."""
    if where is None:
        return
    for port in range(where[1], where[1] + workers):
        host = where[0].strip("[]")
        try:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise ChannelError(f"nothing can listen on {where[0]}:{port}: {why}; choose another --metrics") from error


@contextmanager
def served(address: str | None, pipeline: str) -> Iterator[Figures]:
    """Serve the figures at host:port while the block runs; None: nowhere.  Raises `ChannelError` when that cannot be."""
    figures = Figures(pipeline)
    if address is None:
        yield figures
        return
    host, port = host_and_port(address)
    with of_clusters():
        from prometheus_client import CollectorRegistry, start_http_server
    registry = CollectorRegistry()
    registry.register(figures)
    try:
        server, thread = start_http_server(port, host.strip("[]"), registry)
    except OSError as error:
        raise ChannelError(f"nothing can listen on {address}: {error.strerror}; choose another --metrics") from error
    try:
        yield figures
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
