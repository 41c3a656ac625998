"""`make chaos-spark`: a cluster on Spark's executors, which are killed and stopped, and the ledger of `tests.chaos.cluster`.

The same seed and minutes give the same plan.  Killed are workers, Spark's Python workers and their daemons, executors, all
processes of an executor at once (as when its machine is gone), controllers, Postgres and the driver.  What is counted at the
end is what `make chaos` counts.

    python -m tests.chaos.spark --minutes 10 --seed 3
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from millwheel.spark import archive, hosting
from millwheel.spark.java import LEAN_JVM
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.testing import temporary_postgres
from tests.chaos.cluster import Blow, Chaos, children, judged, write_ledger

KINDS = {
    "kill worker": 3, "kill python": 3, "kill daemon": 1, "kill executor": 4, "kill machine": 3, "stop machine": 2,
    "stop worker": 2, "kill controller": 2, "kill postgres": 1, "kill driver": 1,
}  # fmt: skip
"""Kinds of blows, and how often they come in relation to each other."""
ABOVE = {"worker": 0, "python": 1, "daemon": 2, "executor": 3, "machine": 3}
"""How far above the worker's process the victim is."""
READY_LIMIT_S = 90.0
"""How long a blow waits until there is a worker to hit: a driver that was killed starts a JVM first."""


def plan_of(seed: int, minutes: float, lease_s: float, every_s: float, kinds: dict[str, int]) -> list[Blow]:
    """Blows from the first second to the last."""
    dice = random.Random(f"spark {seed} {minutes}")
    blows, at = [], 0.0
    while (at := at + dice.expovariate(1 / every_s)) < minutes * 60:
        kind = dice.choices([*kinds], [*kinds.values()])[0]
        blows.append(Blow(round(at, 2), kind, dice.randrange(1_000), round(dice.uniform(0.1, 2.2) * lease_s, 2)))
    return blows


def settings() -> dict[str, str]:
    """Of a Spark that starts soon and says little."""
    jvm = f"{LEAN_JVM} {archive.options()}"
    return {
        "spark.ui.enabled": "false", "spark.driver.extraJavaOptions": jvm, "spark.executor.extraJavaOptions": jvm,
    }  # fmt: skip


# --- the driver ---------------------------------------------------------------------------------------------------


class HostedLedger(Protocol):
    """Whatever hosts the workers."""

    def status(self) -> int | None:
        """How it has ended, or None."""
        ...

    def kill(self) -> None:
        """kill -9, and start another one."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class OwnSession:
    """Jobs of a session that this process has, so that several runs share one JVM."""

    def __init__(self, spark: SparkSession, url: str, workers: int, lease_s: float, log: Callable[[str], None]) -> None:
        self._cluster = hosting.up(
            "ledger:pipeline", url, spark=spark, workers=workers, lease_s=lease_s,
            say=lambda name, _, line: log(f"{name} | {line}"),
        )  # fmt: skip

    def status(self) -> int | None:
        return self._cluster.wait(0) if self._cluster.done else None

    def kill(self) -> None:
        raise NotImplementedError("the driver is this process")

    def close(self) -> None:
        self._cluster.stop()


class DriverProcess:
    """`millwheel up --on local-cluster[...]`, which is started again when it was killed, as a site would."""

    def __init__(self, directory: Path, url: str, workers: int, lease_s: float, log: Callable[[str], None]) -> None:
        given = [word for name, value in settings().items() for word in ("--conf", f"{name}={value}")]
        self._command = [
            sys.executable, "-m", "millwheel", "up", "ledger:pipeline", "--on", f"local-cluster[{workers},1,1024]",
            "--workers", f"{workers}", "--lease", f"{lease_s:g}", *given,
        ]  # fmt: skip
        self._place = directory, {**os.environ, "MILLWHEEL_STORE": url}
        self._log = log
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        directory, environment = self._place
        process = subprocess.Popen(
            self._command, cwd=directory, env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._pass_on, args=(process,), daemon=True).start()
        return process

    def _pass_on(self, process: subprocess.Popen[str]) -> None:
        for line in process.stderr or ():
            if " | " in line or line.startswith("millwheel"):
                self._log(line.rstrip("\n"))

    def status(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._started()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(60)
            self._process.kill()
        self._process.wait()


# --- the processes ------------------------------------------------------------------------------------------------


def members(directory: Path, role: str) -> list[tuple[str, int]]:
    """The processes of this run in a role, by name: they run in its directory, as all do on a local master."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[1:5] == ["-m", "millwheel", role, "ledger:pipeline"] and _runs_in(entry, directory):
                    found.append((words[6], int(entry.name)))
    return sorted(found)


def _runs_in(entry: Path, directory: Path) -> bool:
    return Path(os.readlink(entry / "cwd")) == directory.resolve()


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def tree(process: int) -> list[int]:
    """A process and all below it."""
    return [process, *(below for child in children(process) for below in tree(child))]


def send(number: signal.Signals, processes: Sequence[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


class SparkChaos:
    """One run."""

    def __init__(self, directory: Path, postgres: EmbeddedPostgres, lease_s: float, log: Callable[[str], None]) -> None:
        self.directory = directory
        self.log = log
        self.performed: Counter[str] = Counter()
        self.seen = Chaos(directory, postgres, lease_s, log)
        """Watches the database, and strikes Postgres."""
        self._busy: set[int] = set()
        """Processes that are stopped now."""

    async def run(self, host: HostedLedger, plan: Sequence[Blow], limit_s: float) -> int:
        """Carry the plan out, heal everything, and wait for the end of the run; its status."""
        watching = asyncio.create_task(self.seen._watch())
        healing: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.timeout(READY_LIMIT_S):
                while not self.seen._watermarks and host.status() is None:
                    await asyncio.sleep(0.1)
            began = time.monotonic()
            for blow in plan:
                while (left := began + blow.at - time.monotonic()) > 0 and host.status() is None:
                    await asyncio.sleep(min(left, 0.5))
                if host.status() is not None:
                    self.log("the run ended before the plan did")
                    break
                healing.add(asyncio.create_task(self._strike(host, blow)))
            await asyncio.gather(*healing)
            self.log("all is healed")
            async with asyncio.timeout(limit_s):
                while (status := host.status()) is None:
                    await asyncio.sleep(0.2)
            return status
        except TimeoutError:
            self.log("the run does not end")
            return -1
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _strike(self, host: HostedLedger, blow: Blow) -> None:
        verb, _, whom = blow.kind.partition(" ")
        if whom == "postgres":
            done = await self.seen._strike_postgres(verb, blow.seconds)
        elif whom == "driver":
            self.log("kill driver")
            await asyncio.to_thread(host.kill)
            done = True
        else:
            done = await self._strike_processes(verb, whom, blow)
        self.performed[blow.kind] += done

    async def _strike_processes(self, verb: str, whom: str, blow: Blow) -> bool:
        found = await self._victim("controller" if whom == "controller" else "worker", blow.victim)
        if found is None:
            return False
        name, process = found
        try:
            for _ in range(ABOVE.get(whom, 0)):
                process = parent(process)
        except OSError:  # it died just now
            return False
        if process <= 1:  # an orphan, after its daemon was killed
            return False
        self.log(f"{verb} {whom} of {name}" + (f" for {blow.seconds} s" if verb == "stop" else ""))
        victims = tree(process) if whom == "machine" else [process]
        if verb == "kill":
            send(signal.SIGKILL, victims)
            return True
        victims = [victim for victim in victims if victim not in self._busy]
        self._busy.update(victims)
        send(signal.SIGSTOP, victims)
        await asyncio.sleep(blow.seconds)
        send(signal.SIGCONT, victims)
        self._busy.difference_update(victims)
        return True

    async def _victim(self, role: str, number: int) -> tuple[str, int] | None:
        until = time.monotonic() + READY_LIMIT_S
        while not (found := members(self.directory, role)):
            if time.monotonic() > until:
                return None
            await asyncio.sleep(0.2)
        return found[number % len(found)]


def chaos(
    minutes: float, seed: int, *, spark: SparkSession | None = None, directory: Path, workers: int = 3,
    lease_s: float = 2.5, every_s: float = 8.0, kinds: dict[str, int] | None = None, log: Callable[[str], None],
) -> dict[str, int]:  # fmt: skip
    """One run in an empty directory, which must be the current one when `spark` is given.

    Counts of what went wrong, all of which have to be zero.
    """
    kinds = KINDS if kinds is None else kinds
    plan = plan_of(seed, minutes, lease_s, every_s, {k: n for k, n in kinds.items() if k != "kill driver" or not spark})
    with temporary_postgres() as postgres:
        expected = write_ledger(directory, minutes * 60 + 5, seed)
        log(f"seed {seed}: {len(plan)} blows in {minutes:g} minutes, {expected.rows:,} rows")
        host: HostedLedger = (
            DriverProcess(directory, postgres.url, workers, lease_s, log)
            if spark is None
            else OwnSession(spark, postgres.url, workers, lease_s, log)
        )
        run = SparkChaos(directory, postgres, lease_s, log)
        try:
            status = asyncio.run(run.run(host, plan, 180 + 3 * minutes * 60))
        finally:
            host.close()
        found = {**judged(postgres.url, expected), "watermarks that went back": len(run.seen.regressions)}
        found["ended with a status"] = int(status != 0)
    log(f"blows: {dict(sorted(run.performed.items()))}")
    log(f"found: {found}" + "".join(f"\n  {line}" for line in run.seen.regressions[:10]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.spark", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5, help="how long blows fall (default 5)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the plan (default: drawn)")
    parser.add_argument("--workers", type=int, default=3, help="workers, and executors")
    parser.add_argument("--every", type=float, default=8.0, help="seconds between two blows, on average")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mw-chaos-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        found = chaos(
            given.minutes, given.seed, directory=Path(directory), workers=given.workers, every_s=given.every,
            log=lambda line: print(f"{time.monotonic() - began:7.1f} {line}", flush=True),
        )  # fmt: skip
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
