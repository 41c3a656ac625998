"""`millwheel up`: a whole cluster on this machine."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from millwheel.cli.log_format import is_log_object, log_format, log_object
from millwheel.cli.metrics import check_free, ports_of
from millwheel.cli.options import CACHE_SIZE, STORE_OPTIONS, Place, allowances, option, place, variable
from millwheel.cli.status import Status
from millwheel.escapes import harmless
from millwheel.limits import LEASE_LONGEST_S, LEASE_SHORTEST_S, LEASE_US
from millwheel.terminal import let_go_of_closed_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from millwheel.host.over import Tolerance
    from millwheel.launch import StoreLoss
    from millwheel.runtime.supervisor import ChildPlan

UP = "up"
"""What the supervisor calls itself."""


@click.command(short_help="A whole cluster on this machine, or on Spark.")
@place
@option("--workers", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="How many workers.")
@option("--controllers", type=click.IntRange(min=0), default=1, show_default=True, metavar="N",
        help="How many controllers; one leads.  0, with --on: they run elsewhere.")  # fmt: skip
@option("--on", metavar="MASTER",
        help="Workers are jobs on this Spark: spark://HOST:7077, local-cluster[2,1,1024], local[2].")  # fmt: skip
@option("--conf", multiple=True, metavar="NAME=VALUE", help="With --on: a setting of Spark; can be given again.")
@option("--py-files", multiple=True, metavar="FILE", type=click.Path(exists=True, dir_okay=False),
        help="With --on: code that the pipeline imports, .py or .zip; can be given again.")  # fmt: skip
@option("--certs", metavar="DIRECTORY", type=click.Path(file_okay=False),
        help="With --on: certificates, in this directory on every machine.")  # fmt: skip
@option("--lease", type=click.FloatRange(LEASE_SHORTEST_S, LEASE_LONGEST_S), default=LEASE_US / 1e6, show_default=True,
        metavar="SECONDS", help="How soon others take over what a dead process had.")  # fmt: skip
@allowances
@option("--cache", type=CACHE_SIZE, metavar="SIZE",
        help="Memory of each worker for state of keys; all have a quarter of this machine's, if not given.")  # fmt: skip
@option("--metrics", metavar="HOST:PORT",
        help="Where the first worker serves figures for Prometheus; each other one at the next port.")  # fmt: skip
@option("-q", "--quiet", is_flag=True, help="No progress, only warnings and errors; goes before --verbose.")
@option("-v", "--verbose", is_flag=True, help="More of what goes on.")
@log_format
def up(
    place: Place, workers: int, controllers: int, lease: float, quiet: bool, verbose: bool, log_format: str,
    on: str | None, allow_quarantine: int | None, allow_rejected: int | None, metrics: str | None, cache: int | None,
    **given: Any,
) -> int:  # fmt: skip
    """Start workers and controllers of a pipeline on this machine, until its sources are finished, Ctrl-C or SIGTERM.

    Each line that a process prints begins with its name.  A process that dies is started again; what it served goes to the
    others meanwhile.

    --allow-quarantine and --allow-rejected are for all workers together.

    With --on, workers are jobs on the executors of Spark, and the controllers run here.  SIGTTIN to this process adds a
    worker, and SIGTTOU takes one away.
    """
    import asyncio

    from millwheel.cli.extras import check_cluster_packages
    from millwheel.host.over import Tolerance
    from millwheel.launch import StoreLoss
    from millwheel.runtime.embedded import check_sources

    check_cluster_packages()  # one error here, and not one of each process, again and again
    pipeline = place.pipeline()
    check_sources(pipeline.graph())
    more = ["--lease", f"{lease:g}", "--log-format", log_format, *(["--verbose"] if verbose and not quiet else [])]
    allowed = Tolerance(allow_quarantine, allow_rejected)
    say = partial(_print_object, pipeline.name) if log_format == "json" else _print
    if on is not None and not controllers and allowed != Tolerance():
        raise click.UsageError(f"{allowed.options()[0]} is for controllers, which run elsewhere: give it to them")
    if on is not None and metrics is not None:
        raise click.UsageError("--metrics is for workers on this machine, and not with --on")
    if on is not None:
        status = _on_spark(place, workers, controllers, more, allowed, quiet, say, on, {**given, "cache": cache})
    else:
        _check_on_is_there({**given, "controllers 0": not controllers})
        check_ports({"worker": workers, "controller": controllers})
        for_worker = [*more, *(["--quiet"] if quiet else []), *cache_of_each(cache, workers)]
        ports = ports_of(metrics, workers)
        check_free(ports, workers)
        plans = plan(place.path, workers, controllers, for_worker, [*more, *allowed.options()], ports)
        loss = StoreLoss()
        with place.opened(loss) as url:
            status = asyncio.run(_run(plans, say, {**os.environ, **child_environment(place, url)}, loss))
    if status is None:
        stopped = "stopped; run it again to resume"
        if log_format == "json":
            _print_object(pipeline.name, UP, True, stopped, logging.INFO)
        else:
            click.echo(f"millwheel: {stopped}", err=True)
        return Status.STOPPED
    return status if status >= 0 else Status.FAILED


def _on_spark(
    place: Place, workers: int, controllers: int, more: Sequence[str], allowed: Tolerance, quiet: bool,
    say: Callable[[str, bool, str], None], on: str, given: dict[str, Any],
) -> int | None:  # fmt: skip
    from millwheel.cli.on_spark import OnSpark, up_on_spark

    asked = OnSpark(
        master=on, workers=workers, controllers=controllers, options=tuple(more), allowed=allowed,
        settings=given["conf"], py_files=given["py_files"], certs=given["certs"], quiet=quiet, cache=given["cache"],
    )  # fmt: skip
    return up_on_spark(place, asked, say)


def _check_on_is_there(given: dict[str, Any]) -> None:
    wrong = [name.replace("_", "-") for name, value in given.items() if value]
    if wrong:
        raise click.UsageError(f"--{wrong[0]} goes with --on, which says where Spark is")


def check_ports(processes: Mapping[str, int]) -> None:
    """Raises `UsageError` when processes of one machine would share a port, which was meant for a process by itself."""
    files: Mapping[str, Any] = click.get_current_context().find_root().default_map or {}
    everywhere = os.environ.get(variable("--listen"))
    sharing = Counter[str]()
    for role, count in processes.items():
        sharing[everywhere or files.get(role, {}).get("listen") or ""] += count
    for listen, count in sharing.items():
        if count > 1 and listen and listen.rpartition(":")[2] != "0":
            raise click.UsageError(
                f"{count} processes would listen on {listen}, as the environment or the settings file says (listen): "
                "leave it out, or write port 0, by which each takes a free one"
            )


def cache_of_each(cache: int | None, workers: int) -> list[str]:
    """The option of each worker: what is given, or an equal part of what one process would have."""
    from millwheel.runtime import memory

    files: Mapping[str, Any] = click.get_current_context().find_root().default_map or {}
    if cache is None and files.get("worker", {}).get("cache"):
        return []  # it has read the file, too
    return ["--cache", str(memory.cache_bytes(workers) if cache is None else cache)]


def child_environment(place: Place, url: str) -> dict[str, str]:
    """Where the store is, for the processes; not on their command lines, which other users of the machine can read."""
    return {variable("--store"): url, STORE_OPTIONS: shlex.join(place.options())}


def plan(
    path: str, workers: int, controllers: int, for_worker: Sequence[str], for_controller: Sequence[str],
    metrics: tuple[str, int] | None = None,
) -> list[ChildPlan]:  # fmt: skip
    """The processes of a cluster and their commands.  `metrics`: the host, and the port of the first worker."""
    from millwheel.runtime.supervisor import ChildPlan

    def command(role: str, name: str, more: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "millwheel", role, path, "--name", name, "--with-parent", *more]

    found = [("controller", f"controller-{n + 1}", for_controller) for n in range(controllers)]
    for n in range(workers):
        figures = [] if metrics is None else ["--metrics", f"{metrics[0]}:{metrics[1] + n}"]
        found.append(("worker", f"worker-{n + 1}", [*for_worker, *figures]))
    return [ChildPlan(name, role == "worker", command(role, name, more)) for role, name, more in found]


async def _run(
    plans: Sequence[ChildPlan], say: Callable[[str, bool, str], None], environment: dict[str, str], loss: StoreLoss
) -> int | None:
    import asyncio

    from millwheel import interrupts
    from millwheel.runtime.signals import heeded
    from millwheel.runtime.supervisor import ENDS, Supervisor

    width = max(len(plan.name) for plan in plans)
    supervisor = Supervisor(
        plans, ENDS, lambda name, is_error, line: say(name.ljust(width), is_error, line), environment
    )
    loop = asyncio.get_running_loop()

    def stop() -> None:
        let_go_of_closed_terminal()
        supervisor.stop()

    for number in heeded():
        loop.add_signal_handler(number, stop)
    if interrupts.told():
        stop()
    loss.ends(lambda error: loop.call_soon_threadsafe(supervisor.give_up, str(error)))
    return await supervisor.run()


def _print(name: str, is_error: bool, line: str) -> None:
    _put(f"{name} | {harmless(line)}", is_error)


def _print_object(pipeline: str, name: str, is_error: bool, line: str, level: int | None = None) -> None:
    """A line as it is when it is an object already; else one of it, because user code and interpreters print as well."""
    if not is_log_object(line):
        if level is None:
            level = logging.WARNING if is_error else logging.INFO
        name = name.strip()
        role = name if name == UP else name.partition("-")[0]
        line = log_object(time.time(), level, line, {"pipeline": pipeline, "role": role, "member": name})
    _put(line, is_error)


def _put(line: str, is_error: bool) -> None:
    """Print, unless whoever read it has seen enough, as `head` has: the cluster goes on, as a run does."""
    stream = sys.stderr if is_error else sys.stdout
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # also what is left in its buffer
