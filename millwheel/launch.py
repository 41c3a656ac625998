"""Starting a pipeline: the composition of graph, store and embedded run.

Lives here, with the command line: the only place that chooses a store.  `run` is the Python call behind
`millwheel run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import SubprocessError
from types import ModuleType
from typing import NamedTuple

import uvloop

from millwheel.api.pipeline import Pipeline
from millwheel.baselines import Baseline
from millwheel.errors import MillwheelError, PipelineFailed, StoreError, WiringError
from millwheel.host.over import Tolerance
from millwheel.host.progress import Progress
from millwheel.limits import PROGRESS_DELAY_S, WATCH_DELAY_S
from millwheel.runtime import memory
from millwheel.runtime.embedded import EmbeddedRun, check_sources
from millwheel.runtime.failures import OnFailure, log_failure
from millwheel.runtime.shell import Shell
from millwheel.runtime.signals import signals_restored, signals_stop
from millwheel.traces import ending, shortened
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.connection import store_place

DEFAULT_DATA = ".millwheel"
"""Where the embedded Postgres keeps its data, relative to the working directory."""


logger = logging.getLogger("millwheel")

OnProgress = Callable[[Progress, float], None]
"""Called about once a second with the progress and the seconds since the start."""


class StoreLoss:
    """Tells a run that its embedded Postgres is gone for good, whichever of the two is there first.

    Nobody waits for such a store: no try would reach it.  Whoever does not say how it ends finds an error in its log.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: StoreError | None = None
        self._end: Callable[[StoreError], object] | None = None

    def ends(self, end: Callable[[StoreError], object]) -> None:
        """Call `end` with the loss when it has happened; from another thread, if it comes later."""
        with self._lock:
            self._end, error = end, self._error
        if error is not None:
            end(error)

    def happened(self, error: StoreError) -> None:
        """The store is gone."""
        with self._lock:
            self._error, end = error, self._end
        if end is None:
            logger.error("%s", error)
        else:
            end(error)


@contextmanager
def open_store(
    store: str | None, data: str | Path = DEFAULT_DATA, create: bool = True, loss: StoreLoss | None = None
) -> Iterator[str]:
    """The URL of the store: `store` itself, or an embedded Postgres in `data` that stops when the block ends.

    Raises `StoreError` for a text that is empty or no URL, for a directory that cannot hold a Postgres, and, unless it may
    `create` one, for a directory that has none.
    """
    if (store is not None and not store.strip()) or not str(data).strip():
        raise StoreError("the store's URL or directory is empty: give one, or leave it out")
    if store is not None:
        store_place(store)
        yield store
        return
    with contextlib.ExitStack() as stack:
        postgres = EmbeddedPostgres(Path(data) / "postgres")
        try:
            if not create and not postgres.exists:
                raise StoreError(f"there is no store in {data}: run the pipeline first, or name its --data or --store")
            stack.enter_context(postgres)
        except OSError as error:
            raise StoreError(f"no Postgres can live in {data}: {error}; name another directory (--data)") from error
        stack.enter_context(_kept_running(postgres, loss or StoreLoss()))
        yield postgres.url


@contextmanager
def _kept_running(postgres: EmbeddedPostgres, loss: StoreLoss) -> Iterator[None]:
    """Start the embedded Postgres again when it dies, for example by the kernel's out-of-memory killer."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(WATCH_DELAY_S):
            if postgres.lost:
                loss.happened(
                    StoreError(
                        f"{postgres.directory} was moved or removed while it was in use, so its Postgres is stopped: put it "
                        "back, and run this again; without it the next run begins with an empty store"
                    )
                )
                postgres.stop()
                return
            if postgres.pid is None:
                logger.warning("the embedded Postgres in %s died; starting it again", postgres.directory)
                try:
                    postgres.ensure_running(unless=ended.is_set)
                except (MillwheelError, OSError, SubprocessError) as error:
                    if not ended.is_set():
                        logger.warning("%s; trying again", error)

    watcher = threading.Thread(target=watch, name="millwheel-postgres-watch", daemon=True)
    try:
        watcher.start()
        yield
    finally:
        ended.set()
        if watcher.is_alive():
            watcher.join()


@contextmanager
def unhurried_collector() -> Iterator[None]:
    """Let Python look for reference cycles less often.

    Records live in long lists, and a collection walks all of them; nothing here makes cycles.  At Python's own
    threshold of 700 objects that walking was a fifth of the time of a busy run.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def run(
    pipeline: Pipeline,
    store: str | None = None,
    data: str | Path = DEFAULT_DATA,
    on_progress: OnProgress | None = None,
    *,
    on_failure: OnFailure = log_failure,
    allow_quarantine: int | None = None,
    allow_rejected: int | None = None,
    cache_bytes: int | None = None,
) -> Progress:
    """Run `pipeline` until its sources are finished, Ctrl-C or SIGTERM; run it again to resume.

    `on_failure` is told the first failure of each kind of a hook; without it they are logged.  With `allow_quarantine` or
    `allow_rejected` the run stops when it has put more keys into quarantine, or rejected more rows; `Progress.stopped` says
    so.  Where an event loop runs already the run has a thread of its own; `arun` runs in that loop.  State of keys may take
    `cache_bytes` of memory, or else a quarter of what the process may use.
    `store` is a postgresql:// URL (Postgres 15 or later); without it an embedded Postgres keeps its data in `data`.
    Raises `WiringError`, `SourceError`, `StoreError`, `IncompatibleStore`; `Fenced` when another run takes over; `HooksFail`
    when a hook fails for all of its first keys.
    """
    asked = Asked(
        pipeline, on_progress, on_failure, Tolerance(allow_quarantine, allow_rejected), cache_bytes, StoreLoss()
    )
    _check_asked(asked)
    with open_store(store, data, loss=asked.loss) as url:
        return _run_beside(asked, url) if _loop_runs() else _run_here(asked, url)


async def arun(
    pipeline: Pipeline,
    store: str | None = None,
    data: str | Path = DEFAULT_DATA,
    on_progress: OnProgress | None = None,
    *,
    on_failure: OnFailure = log_failure,
    allow_quarantine: int | None = None,
    allow_rejected: int | None = None,
    cache_bytes: int | None = None,
) -> Progress:
    """As `run`, in the event loop that runs now: `await arun(pipeline)` in a notebook or a server.

    Hooks run on the loop's thread, a few milliseconds at a time, and what else the loop does waits for a slow one.  Signals
    are the caller's.  Cancelling the task ends the run; run it again to resume.
    """
    asked = Asked(
        pipeline, on_progress, on_failure, Tolerance(allow_quarantine, allow_rejected), cache_bytes, StoreLoss()
    )
    _check_asked(asked)
    opened = open_store(store, data, loss=asked.loss)
    url = await asyncio.to_thread(opened.__enter__)  # starting a Postgres takes a while
    try:
        with unhurried_collector():
            embedded = asked.embedded(url)
            return await _driven(embedded, asked.on_progress)
    finally:
        await asyncio.shield(asyncio.to_thread(opened.__exit__, None, None, None))


class Asked(NamedTuple):
    """What a caller wants run."""

    pipeline: Pipeline
    on_progress: OnProgress | None
    on_failure: OnFailure
    allowed: Tolerance
    cache_bytes: int | None
    loss: StoreLoss

    def embedded(self, url: str) -> EmbeddedRun:
        """The run, on the store at `url`."""
        graph, store = self.pipeline.graph(), PostgresStore(url, self.pipeline.name)
        run = EmbeddedRun(
            graph, store, self.pipeline.tables, on_failure=self.on_failure, tolerance=self.allowed,
            cache_bytes=memory.granted(self.cache_bytes),
        )  # fmt: skip
        self.loss.ends(run.fail)
        return run


def checked_pipeline(given: object, who: str) -> Pipeline:
    """What was given to `who`, which is a pipeline, or a `WiringError`."""
    if not isinstance(given, Pipeline):
        made = ": call it, with brackets" if callable(given) else ""
        raise WiringError(f"{who} needs a Pipeline, got {given!r:.80}{made}")
    return given


def _check_asked(asked: Asked) -> None:
    """What a caller has given is what it should be, and the pipeline has a source."""
    checked_pipeline(asked.pipeline, "run")
    for name, function in (("on_progress", asked.on_progress), ("on_failure", asked.on_failure)):
        if function is not None and not callable(function):
            raise WiringError(f"{name}={function!r:.80}: give a function")
    for name, count in (("allow_quarantine", asked.allowed.quarantined), ("allow_rejected", asked.allowed.rejected)):
        if count is not None and (type(count) is not int or count < 0):
            raise WiringError(f"{name}={count!r:.80}: give a number, at least 0, or None")
    if asked.cache_bytes is not None and (type(asked.cache_bytes) is not int or asked.cache_bytes < 1):
        raise WiringError(f"cache_bytes={asked.cache_bytes!r:.80}: give a number, at least 1, or None")
    check_sources(asked.pipeline.graph())


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_here(asked: Asked, url: str) -> Progress:
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)  # docs/adr/0013-uvloop.md
    with unhurried_collector(), signals_restored(), runner:
        return runner.run(_driven_with_signals(asked.embedded(url), asked.on_progress))


def _run_beside(asked: Asked, url: str) -> Progress:
    """In a thread: a loop runs in this one, as in a notebook, and is blocked until the run ends.  Ctrl-C stops the run."""
    embedded = asked.embedded(url)

    def work() -> Progress:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_driven(embedded, asked.on_progress))

    with unhurried_collector(), ThreadPoolExecutor(1, "millwheel-run") as pool:
        running = pool.submit(work)
        try:
            return running.result()
        except KeyboardInterrupt:
            embedded.stop()
            return running.result()


async def _driven_with_signals(embedded: EmbeddedRun, on_progress: OnProgress | None) -> Progress:
    with signals_stop(embedded):
        return await _driven(embedded, on_progress)


async def _driven(embedded: EmbeddedRun, on_progress: OnProgress | None) -> Progress:
    loop = asyncio.get_running_loop()
    reporter = loop.create_task(report(embedded, on_progress)) if on_progress else None
    try:
        return await embedded.run()
    finally:
        if reporter is not None:
            reporter.cancel()
        await embedded.store.close()


async def report(shell: Shell, on_progress: OnProgress) -> None:
    """Report about once a second, until it is cancelled, or `on_progress` raises an error, which is logged."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        await asyncio.sleep(PROGRESS_DELAY_S)
        try:
            on_progress(shell.progress(), loop.time() - began)
        except BrokenPipeError:
            return  # whoever read it has seen enough
        except Exception as error:
            logger.error("on_progress has failed and is not called any more: %s\n%s", ending(error), shortened(error))
            return


def import_pipeline(path: str) -> Pipeline:
    """The pipeline named "module:attribute"; a callable attribute is called without arguments."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise WiringError(f"{path!r} names no pipeline: write module:attribute, for example wordcount:pipeline")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise WiringError(
            f"{module_name!r} is no module: for a file of that directory write its name without .py, and dots for slashes, "
            "for example wordcount:pipeline"
        )
    if module_name.endswith(".py") and Path(module_name).is_file():
        raise WiringError(f"{module_name!r} is a file: write its module, {module_name.removesuffix('.py')}:{attribute}")
    module = _imported(module_name)
    if not hasattr(module, attribute):
        known = [name for name, value in vars(module).items() if isinstance(value, Pipeline)]
        # Without any it is seldom the file that was meant: one of another name stands before it on the path.
        where = "" if known else f", which is {getattr(module, '__file__', 'built in')},"
        raise WiringError(f"{module_name!r}{where} has no {attribute!r}; its pipelines: {', '.join(known) or 'none'}")
    found = getattr(module, attribute)
    if callable(found) and not isinstance(found, Pipeline):
        found = _made(path, found)
    if not isinstance(found, Pipeline):
        verb = "is" if found is getattr(module, attribute) else "returns"
        raise WiringError(f"{path!r} {verb} {type(found).__name__}, not a millwheel.Pipeline")
    if found.baseline is not Baseline.NONE:
        raise WiringError(
            f"the durability of {path!r} is for comparisons in benchmarks: use Checkpoints() or Snapshots()"
        )
    return found


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except MillwheelError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None:
            raise _failed(f"{name!r} cannot be imported", error) from error
        if f"{name}.".startswith(f"{error.name}."):
            raise WiringError(f"there is no module {name!r} in {here}: run from the directory that holds it") from error
        raise WiringError(f"{name!r} imports {error.name!r}, which is not installed or misspelt") from error
    except SystemExit as end:
        raise WiringError(f"{name!r} cannot be imported: {_exits(end)}") from end
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(f"{name!r} cannot be imported", error) from error


def _made(path: str, make: Callable[[], object]) -> object:
    """What a function without arguments gives."""
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError) as error:
        raise WiringError(f"{path!r} cannot be called without arguments: {error}") from error
    try:
        return make()
    except MillwheelError:
        raise
    except SystemExit as end:
        raise WiringError(f"{path!r} cannot be made: {_exits(end)}") from end
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(f"{path!r} cannot be made", error) from error


def _exits(end: SystemExit) -> str:
    """Says what has called `sys.exit`; a script that is imported runs its main part."""
    return f"{ending(end)}; put what only a script does below if __name__ == '__main__'"


def _failed(what: str, error: BaseException) -> PipelineFailed:
    return PipelineFailed(f"{what}: {type(error).__name__}: {error}", shortened(error))
