"""`millwheel worker` and `millwheel controller`: the processes of a cluster, started one by one."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

import click

from millwheel.cli.extras import of_clusters
from millwheel.cli.lines import Lines
from millwheel.cli.log_format import log_format
from millwheel.cli.metrics import metrics, served
from millwheel.cli.options import Place, allowances, cache, option, place
from millwheel.cli.outcome import failed, log_facts, outcome, outcome_of_all, tell
from millwheel.cli.status import Status
from millwheel.errors import MillwheelError
from millwheel.limits import LEASE_LONGEST_S, LEASE_SHORTEST_S, LEASE_US

if TYPE_CHECKING:
    from collections.abc import Callable

    from millwheel.host.progress import Progress
    from millwheel.processes import ProcessPlan
    from millwheel.transport.certificates import Certificates

STOPPED = "stopped; others go on with what it had"


def member(function: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that every process of a cluster has."""
    for added in (
        log_format,
        click.option("--with-parent", is_flag=True, hidden=True,
                     help="End in order when standard input ends."),
        option("--lease", type=click.FloatRange(LEASE_SHORTEST_S, LEASE_LONGEST_S), default=LEASE_US / 1e6,
               show_default=True, metavar="SECONDS",
               help="How soon others take over what this process had when it is dead."),
        option("--certs", metavar="DIRECTORY", type=click.Path(file_okay=False),
               help="Certificates of this process, made by millwheel certs; needed to listen beyond this machine."),
        option("--advertise", metavar="HOST[:PORT]", help="Where others reach it; where it listens, if not given."),
        option("--listen", metavar="HOST:PORT", default="127.0.0.1:0", show_default=True,
               help="Where it listens; port 0 is a free one."),
        option("--name", metavar="NAME", help="What status calls it; machine and process number, if not given."),
    ):  # fmt: skip
        function = added(function)
    return place(function)


@click.command(short_help="A worker of a cluster, until the run is over.")
@member
@metrics
@cache
@option("-q", "--quiet", is_flag=True, help="No progress, only warnings and errors; goes before --verbose.")
@option("-v", "--verbose", is_flag=True, help="The watermark of every computation, and more of what goes on.")
def worker(
    place: Place, metrics: str | None, cache: int | None, quiet: bool, verbose: bool, with_parent: bool,
    log_format: str, **given: Any,
) -> int:  # fmt: skip
    """Serve intervals and sources of a pipeline, as a process of a cluster, until the run is over, Ctrl-C or SIGTERM.

    What it serves the leading controller decides.  A worker may be added, and may end, at any time.
    """
    if with_parent:
        _end_with_parent()
    plan = _plan(place, "worker", given)
    from millwheel import processes

    with (
        served(metrics, plan.pipeline.name) as figures,
        Lines(quiet, verbose and not quiet, log_facts(log_format, plan.pipeline.name, "worker", plan.name)) as lines,
        place.opened() as url,
    ):

        def report(progress: Progress, seconds: float) -> None:
            figures.update(progress, seconds)
            lines.progress(progress, seconds)

        try:
            progress, over = processes.run_worker(
                plan._replace(url=url, cache_bytes=cache), report, lambda failure: tell(lines, place, failure)
            )
        except MillwheelError as error:
            return failed(lines, error)
        lines.end(progress)
        return outcome(lines, place, progress, "" if over else STOPPED)


@click.command(short_help="A controller of a cluster, until the run is over.")
@member
@allowances
@option("-v", "--verbose", is_flag=True, help="More of what goes on.")
def controller(
    place: Place, verbose: bool, with_parent: bool, log_format: str, allow_quarantine: int | None,
    allow_rejected: int | None, **given: Any,
) -> int:  # fmt: skip
    """Decide who serves what, and how far time has come, as a process of a cluster.

    One controller leads, and others stand by: start two on different machines, so that a dead one is replaced in seconds.
    Give all of them the same --allow-quarantine and --allow-rejected.  They are for all workers together.
    """
    from millwheel.host.over import Tolerance

    if with_parent:
        _end_with_parent()
    plan = _plan(place, "controller", given)
    from millwheel import processes

    facts = log_facts(log_format, plan.pipeline.name, "controller", plan.name)
    with Lines(quiet=True, verbose=verbose, facts=facts) as lines, place.opened() as url:
        try:
            ending = processes.run_controller(
                plan._replace(url=url, allowed=Tolerance(allow_quarantine, allow_rejected))
            )
        except MillwheelError as error:
            return failed(lines, error)
        if ending is None:
            lines.say(logging.INFO, "stopped; a controller that stands by goes on, if there is one", always=True)
            return Status.STOPPED
        return outcome_of_all(lines, place, ending)


def _plan(place: Place, role: str, given: dict[str, Any]) -> ProcessPlan:
    """What the process is given, except for the store's URL."""
    pipeline = place.pipeline()
    with of_clusters():
        from millwheel.processes import ProcessPlan

        certificates = _certificates(given["certs"], role)
    return ProcessPlan(
        pipeline=pipeline, url="", name=given["name"] or f"{socket.gethostname()}-{os.getpid()}",
        listen=given["listen"], advertise=given["advertise"],
        certificates=certificates,
        lease_us=round(given["lease"] * 1_000_000),
    )  # fmt: skip


def _certificates(directory: str | None, role: str) -> Certificates | None:
    if directory is None:
        return None
    from millwheel.transport.certificates import Certificates  # what reads them is not needed without

    return Certificates.read(directory, role)


def _end_with_parent() -> None:
    """SIGTERM to this process when standard input ends, which its parent keeps open."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="millwheel-parent", daemon=True).start()
