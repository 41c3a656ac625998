"""`millwheel up --on MASTER`: a cluster whose workers are jobs on Spark's executors.

Lives here: the options, signals and lines of that form.  Never here: jobs (`millwheel.spark.hosting`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import click

from millwheel import interrupts
from millwheel.cli.options import Place
from millwheel.cli.status import Status
from millwheel.errors import MillwheelError
from millwheel.limits import HOSTING_LOOK_S, HOSTING_PROGRESS_S
from millwheel.model import format_time
from millwheel.runtime.signals import Presses, heeded
from millwheel.terminal import let_go_of_closed_terminal
from millwheel.wording import counted

if TYPE_CHECKING:
    from millwheel.host.over import Tolerance
    from millwheel.spark.hosting import SparkCluster
    from millwheel.spark.hosting_plan import Say

ME = "up"
"""Whose these lines are."""


class OnSpark(NamedTuple):
    """What `up` is given."""

    master: str
    workers: int
    controllers: int
    options: tuple[str, ...]
    """Of every process."""
    allowed: Tolerance
    """What the whole run may leave over."""
    settings: Sequence[str]
    """Of Spark, each NAME=VALUE."""
    py_files: Sequence[str]
    certs: str | None
    quiet: bool
    cache: int | None = None
    """Of each worker, bytes."""


def up_on_spark(place: Place, on: OnSpark, say: Say) -> int | None:
    """Run the cluster to its end; the largest status of a worker, or None: it was stopped."""
    from millwheel.launch import StoreLoss
    from millwheel.spark import masters
    from millwheel.spark.hosting import SparkCluster
    from millwheel.spark.hosting_plan import HostingPlan

    masters.check_master(on.master)
    masters.check_reachable(on.master, on.certs is not None)
    if place.store is None and not masters.is_local(on.master):
        raise click.UsageError(
            f"executors of {on.master} cannot reach a Postgres that is embedded here: name one that they reach with --store"
        )
    if place.store is None and not on.controllers:
        raise click.UsageError("--controllers 0 joins a cluster that runs elsewhere: name its Postgres with --store")
    settings = settings_of(on.settings)
    loss = StoreLoss()
    with _signals(on.workers) as wishes, place.opened(loss) as url:
        plan = HostingPlan(
            path=place.path, url=url, controllers=on.controllers, options=on.options, allowed=on.allowed, certs=on.certs,
            py_files=tuple(on.py_files), cache_bytes=on.cache,
        )  # fmt: skip
        session = masters.made_session(on.master, f"millwheel {place.path}", settings)
        try:
            wishes.heed()  # Spark has put a handler of its own in the place of Ctrl-C's
            session.sparkContext.setLogLevel("ERROR")  # a worker that is replaced is in our own lines
            if not on.quiet and (pages := session.sparkContext.uiWebUrl):
                say(ME, False, f"what workers print is in the logs of executors: {pages}/executors/")
            with SparkCluster(session, plan, say) as cluster:
                loss.ends(lambda error: cluster.give_up(str(error)))
                status = _followed(place, url, cluster, wishes, None if on.quiet else say)
        finally:
            session.stop()
    if status == Status.DONE and not on.quiet:
        say(ME, False, "the run is over")
    return status


def settings_of(given: Sequence[str]) -> Mapping[str, str]:
    """Settings of Spark from NAME=VALUE.

    >>> settings_of(["spark.executor.memory=2g"])
    {'spark.executor.memory': '2g'}
    """
    wrong = [text for text in given if not text.partition("=")[0].startswith("spark.") or "=" not in text]
    if wrong:
        raise click.UsageError(f"{wrong[0]!r} is no setting of Spark: write --conf spark.NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in given)}


def heeded_signals() -> list[signal.Signals]:
    """What `Wishes` heeds."""
    return [*heeded(), signal.SIGTTIN, signal.SIGTTOU]


class Wishes:
    """What an operator wants, as signals say it."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.stop = False
        self._presses = Presses()

    def heed(self) -> None:
        """From now on signals are wishes."""
        for number in heeded_signals():
            signal.signal(number, self._handle)
        self.stop = self.stop or interrupts.told()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTTIN:
            self.workers += 1
        elif number == signal.SIGTTOU:
            self.workers = max(0, self.workers - 1)
        else:
            self.stop = True
            let_go_of_closed_terminal()
            if number == signal.SIGINT:
                self._presses.add()


@contextmanager
def _signals(workers: int) -> Iterator[Wishes]:
    """SIGINT and SIGTERM end the cluster; SIGTTIN adds a worker, and SIGTTOU takes one away, as other servers have it.

    They are heeded before Spark starts, which takes seconds: to a process without a handler SIGTTIN means to stop for ever.
    """
    wishes = Wishes(workers)
    before = {number: signal.getsignal(number) for number in heeded_signals()}
    wishes.heed()
    try:
        yield wishes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _followed(place: Place, url: str, cluster: SparkCluster, wishes: Wishes, say: Say | None) -> int | None:
    """Until the run is over or is to end; what `SparkCluster.wait` says."""
    wanted, said_at = -1, time.monotonic()
    while not cluster.done and not wishes.stop:
        if wishes.workers != wanted:
            if wanted >= 0 and say is not None:
                say(ME, False, f"{counted(wishes.workers, 'worker is', 'workers are')} wanted now")
            wanted = wishes.workers
            cluster.scale(wanted)
        status = cluster.wait(HOSTING_LOOK_S)
        if say is not None and status is None and time.monotonic() >= said_at + HOSTING_PROGRESS_S:
            said_at = time.monotonic()
            with suppress(MillwheelError):  # it has not begun, or Postgres is away
                say(ME, False, _progress(place, url, cluster))
    return cluster.wait(0)


def _progress(place: Place, url: str, cluster: SparkCluster) -> str:
    from millwheel.overview import ClusterOffice

    with ClusterOffice(place.pipeline(), url) as office:
        found = office.look()
    run = sum(state == "runs" for state in cluster.workers().values())
    slowest = min(found.watermarks.values(), default=None)
    backlog = sum(interval.backlog for interval in found.intervals)
    return (
        f"{run} of {cluster.wanted} workers run, backlog {backlog:,}"
        f"{f', watermark {format_time(slowest)}' if slowest is not None else ''}"
    )
