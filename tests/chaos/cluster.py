"""`make chaos`: a cluster of real processes under kills, stops and cuts, and a keyed ledger whose exact result is known.

A plan is drawn from a seed: the same seed and minutes give the same plan.  It has `kill -9` and SIGSTOP of workers,
controllers, lease keepers and Postgres, connections that are cut or that hold what they carry, and storms of orders that
split, move and merge intervals.  Then all is healed, the run comes to its end, and this is counted:

* rows of the ledger that are lost or doubled, by amount, number and a digest of each account, and by windows of event time;
* stored watermarks that went back;
* commits under a sequencer that was not the current one, as a trigger in the database has seen them.

    python -m tests.chaos.cluster --minutes 10 --seed 3
    python -m tests.chaos.cluster --minutes 30 --rate 900       # more than 3,000,000 records
    python -m tests.chaos.cluster --durability snapshots --loop # what an account got goes on to another one, a few times
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from millwheel.runtime.supervisor import ChildPlan, Supervisor, Verdicts
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.testing import temporary_postgres
from tests.chaos.proxy import TcpProxy
from tests.chaos.storms import Storms

LEDGER = '''
import os
from millwheel import Checkpoints, Computation, JsonCoder, Pipeline, Snapshots, Stream, Table, ValueCell, MapCell, subscribe
from millwheel_injectors import BoundedDisorder, FileSource, JsonLines

WINDOW_US = 5_000_000
ACCOUNTS = 200
HOPS, EVERY_MS = 0, 0

transfers = Stream("transfers", JsonCoder(dict[str, int | str]))
deposits = Stream("deposits", JsonCoder(dict[str, int | str]))
onward = Stream("onward", JsonCoder(dict[str, int | str]))
accounts = Table("accounts", {"account": "text", "cents": "bigint", "times": "bigint", "digest": "bigint"}, ("account",))
windows = Table("windows", {"account": "text", "ends": "bigint", "times": "bigint", "fired": "bigint"}, ("account", "ends"))

class Withdraw(Computation[dict[str, int | str]]):
    """Takes the amount from one account and sends it to another one."""
    cents = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        self.cents.set(self.cents.get() - record.value["cents"])
        context.produce(deposits, record.value)

class Deposit(Computation[dict[str, int | str]]):
    """What an account got, and how often in each window of event time, said by a timer at its end."""
    state = ValueCell(JsonCoder(list[int]), default=[0, 0, 0])
    seen = MapCell(JsonCoder(int))
    fired = MapCell(JsonCoder(int))

    def ProcessRecord(self, context, record):
        cents, times, digest = self.state.get()
        hops = record.value.get("hops", HOPS)
        cents, times = cents + record.value["cents"], times + 1
        digest ^= (record.value["id"] * 0x9E3779B1 + hops) % 2**31
        self.state.set([cents, times, digest])
        context.upsert(accounts, {"account": record.key, "cents": cents, "times": times, "digest": digest})
        ends = record.timestamp // WINDOW_US * WINDOW_US + WINDOW_US
        self.seen.set(str(ends), self.seen.get(str(ends), 0) + 1)
        context.set_timer(str(ends), ends)
        if hops:
            to = f"a{(record.value['id'] * 7919 + hops * 104729) % ACCOUNTS:03}"
            context.produce(onward, {**record.value, "from": record.key, "to": to, "hops": hops - 1})

    def ProcessTimer(self, context, timer):
        times, fired = self.seen.get(timer.tag, 0), self.fired.get(timer.tag, 0) + 1
        self.fired.set(timer.tag, fired)
        context.upsert(windows, {"account": timer.key, "ends": int(timer.tag), "times": times, "fired": fired})

pipeline = Pipeline("ledger", durability=Snapshots(every_ms=EVERY_MS) if EVERY_MS else Checkpoints())
for side in ("east", "west"):
    pipeline.inject(
        FileSource(side, f"{side}-*.jsonl", JsonLines(dict[str, int | str]), event_time=lambda row: row["at"],
                   watermark=BoundedDisorder(0), pace=1),
        into=transfers,
    )
inputs = [transfers, onward] if HOPS else [transfers]
withdrawn = [subscribe(stream, lambda row: row["from"]) for stream in inputs]
pipeline.add(Withdraw, withdrawn, [deposits], split_keys=("a070", "a140"))
deposited = [subscribe(deposits, lambda row: row["to"])]
pipeline.add(Deposit, deposited, [onward] if HOPS else [], split_keys=("a050", "a100", "a150"))
pipeline.sink(accounts)
pipeline.sink(windows)
'''
WINDOW_US = 5_000_000
ACCOUNTS = 200
ROWS_A_SECOND = 120
SIDES = ("east", "west")
FILES_A_SIDE = 2
HOPS = 4
"""Of an amount in a ledger with a loop."""

AUDIT = """
CREATE TABLE public.zombies (interval_id bigint, sequencer bigint, current bigint);
CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE newest bigint;
BEGIN
    EXECUTE 'SELECT sequencer FROM ledger.ownership WHERE interval_id = $1' INTO newest USING NEW.interval_id;
    IF newest IS DISTINCT FROM NEW.sequencer THEN
        INSERT INTO public.zombies VALUES (NEW.interval_id, NEW.sequencer, newest);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER audit BEFORE INSERT ON ledger.checkpoint_log FOR EACH ROW EXECUTE FUNCTION public.audit();
"""


# --- the plan -----------------------------------------------------------------------------------------------------


class Blow(NamedTuple):
    """What happens `at` so many seconds after the first row was counted, to which victim, for how long."""

    at: float
    kind: str
    victim: int
    seconds: float


KINDS = {
    "kill worker": 6, "stop worker": 4, "kill controller": 3, "stop controller": 2, "kill keeper": 2,
    "kill postgres": 1, "stop postgres": 1, "cut": 3, "hold": 2, "hold one way": 2, "storm of orders": 3,
}  # fmt: skip
"""Kinds of blows, and how often they come in relation to each other."""


def plan_of(seed: int, minutes: float, lease_s: float, every_s: float) -> list[Blow]:
    """Blows from the first second to the last, some of them at the same time."""
    dice = random.Random(f"{seed} {minutes}")
    blows, at = [], 0.0
    while (at := at + dice.expovariate(1 / every_s)) < minutes * 60:
        kind = dice.choices([*KINDS], [*KINDS.values()])[0]
        longest = 0.8 if kind == "stop postgres" else 2.2  # the leases of all would run out: once is enough, by kills
        blows.append(Blow(round(at, 2), kind, dice.randrange(1_000), round(dice.uniform(0.1, longest) * lease_s, 2)))
    return blows


# --- the ledger ---------------------------------------------------------------------------------------------------


class Expected(NamedTuple):
    """What the tables must hold at the end."""

    accounts: dict[str, tuple[int, int, int]]
    windows: dict[tuple[str, int], int]
    rows: int


def write_ledger(
    directory: Path, seconds: float, seed: int, rate: int = ROWS_A_SECOND, *, every_ms: int = 0, hops: int = 0
) -> Expected:
    """Write the pipeline and its files; so many rows a second are due, by event time.

    It takes snapshots every `every_ms`, or, when that is 0, a checkpoint for each bundle.  What an account gets goes on to
    another one `hops` times, in a loop.
    """
    settings = "HOPS, EVERY_MS = 0, 0\n"
    assert settings in LEDGER
    (directory / "ledger.py").write_text(LEDGER.replace(settings, f"HOPS, EVERY_MS = {hops}, {every_ms}\n"))
    dice = random.Random(f"ledger {seed}")
    accounts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    windows: Counter[tuple[str, int]] = Counter()
    rows = int(seconds * rate)
    names = [f"{side}-{number}.jsonl" for side in SIDES for number in range(FILES_A_SIDE)]
    files = [(directory / name).open("w") for name in names]
    for id_ in range(1, rows + 1):
        at = 1_000_000 + id_ * 1_000_000 // rate
        source, to = (f"a{dice.randrange(ACCOUNTS):03}" for _ in range(2))
        cents = dice.randrange(1, 10_000)
        row = {"id": id_, "from": source, "to": to, "cents": cents, "at": at}
        files[id_ % len(files)].write(json.dumps(row) + "\n")
        for left in range(hops, -1, -1):
            entry = accounts[to]
            entry[0], entry[1] = entry[0] + cents, entry[1] + 1
            entry[2] ^= (id_ * 0x9E3779B1 + left) % 2**31
            windows[to, at // WINDOW_US * WINDOW_US + WINDOW_US] += 1
            to = f"a{(id_ * 7919 + left * 104729) % ACCOUNTS:03}"
    for file in files:
        file.close()
    return Expected({name: (a, b, c) for name, (a, b, c) in accounts.items()}, dict(windows), rows)


# --- the cluster --------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Chaos:
    """One run: the processes, the proxies before them, and what is seen of the database."""

    def __init__(self, directory: Path, postgres: EmbeddedPostgres, lease_s: float, log: Callable[[str], None]) -> None:
        self.directory = directory
        self.postgres = postgres
        self.lease_s = lease_s
        self.log = log
        self.proxies: list[TcpProxy] = []
        self.performed: Counter[str] = Counter()
        self.regressions: list[str] = []
        self._watermarks: dict[str, int] = {}
        self._supervisor: Supervisor | None = None
        self._healing: set[asyncio.Task[None]] = set()
        self._postgres_busy = asyncio.Lock()
        names = [f"a{number:03}" for number in range(ACCOUNTS)]
        self.storms = Storms(directory / "ledger.py", postgres.url, names, log)

    async def run(self, plan: Sequence[Blow], workers: int, controllers: int, limit_s: float) -> int | None:
        """Carry the plan out, heal everything, and wait for the end of the run; its status."""
        plans = [await self._child("controller", n) for n in range(controllers)]
        plans += [await self._child("worker", n) for n in range(workers)]
        environment = {**os.environ, "MILLWHEEL_STORE": self.postgres.url}
        verdicts = Verdicts(finished=frozenset({0}), hopeless=frozenset({2, 4}), doubtful=frozenset({1, 3}))
        supervisor = self._supervisor = Supervisor(plans, verdicts, self._heard, environment)
        running = asyncio.create_task(supervisor.run())
        watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(60):
                while not self._watermarks and not running.done():
                    await asyncio.sleep(0.1)
            await self._blows(plan, running)
            await asyncio.gather(*self._healing)
            self.log("all is healed")
            async with asyncio.timeout(limit_s):
                return await running
        except TimeoutError:
            self.log("the run does not end")
            supervisor.stop()
            return -1
        finally:
            watching.cancel()
            await asyncio.gather(running, watching, return_exceptions=True)
            for proxy in self.proxies:
                await proxy.close()

    async def _child(self, role: str, number: int) -> ChildPlan:
        port, name = free_port(), f"{role}-{number + 1}"
        proxy = TcpProxy(f"127.0.0.1:{port}")
        self.proxies.append(proxy)
        command = [sys.executable, "-m", "millwheel", role, "ledger:pipeline", "--name", name, "--with-parent"]
        command += ["--listen", f"127.0.0.1:{port}", "--advertise", await proxy.start(), "--lease", f"{self.lease_s:g}"]
        # The directory is told in the command, because the supervisor starts all of them where it is itself.
        return ChildPlan(name, role == "worker", ["env", "-C", str(self.directory), *command])

    def _heard(self, name: str, is_error: bool, line: str) -> None:
        if is_error or name == "up":
            self.log(f"{name} | {line}")

    # --- blows ----------------------------------------------------------------------------------------------------

    async def _blows(self, plan: Sequence[Blow], running: asyncio.Task[int | None]) -> None:
        began = time.monotonic()
        for blow in plan:
            await asyncio.wait([running], timeout=max(0.0, began + blow.at - time.monotonic()))
            if running.done():
                self.log("the run ended before the plan did")
                return
            task = asyncio.create_task(self._strike(blow))
            self._healing.add(task)
            task.add_done_callback(self._healing.discard)

    async def _strike(self, blow: Blow) -> None:
        verb, _, whom = blow.kind.partition(" ")
        if whom == "postgres":
            done = await self._strike_postgres(verb, blow.seconds)
        elif verb == "storm":
            self.log(f"{blow.kind} for {blow.seconds} s")
            done = await asyncio.to_thread(self.storms.blow, f"{blow}", blow.seconds)
        elif verb in ("cut", "hold"):
            done = await self._strike_network(blow)
        else:
            done = await self._strike_process(verb, whom, blow)
        self.performed[blow.kind] += done

    async def _strike_process(self, verb: str, whom: str, blow: Blow) -> bool:
        if self._supervisor is None:
            return False
        found = sorted(self._supervisor.processes().items())
        pids = [(name, pid) for name, pid in found if whom == "keeper" or name.startswith(whom)]
        if not pids:
            return False
        name, pid = pids[blow.victim % len(pids)]
        if whom == "keeper":
            keepers = [child for child in children(pid) if b"lease_keeper" in command_of(child)]
            if not keepers:
                return False
            name, pid = f"keeper of {name}", keepers[0]
        self.log(f"{verb} {name}" + (f" for {blow.seconds} s" if verb == "stop" else ""))
        with suppress(ProcessLookupError):
            if verb == "kill":
                os.kill(pid, signal.SIGKILL)
                return True
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(blow.seconds)
            os.kill(pid, signal.SIGCONT)
        return True

    async def _strike_postgres(self, verb: str, seconds: float) -> bool:
        async with self._postgres_busy:
            pid = self.postgres.pid
            if pid is None:
                return False
            self.log(f"{verb} postgres" + (f" for {seconds} s" if verb == "stop" else ""))
            if verb == "kill":
                os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(seconds / 4)
                await asyncio.to_thread(self.postgres.ensure_running)
                return True
            stopped = [pid, *children(pid)]
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)
            await asyncio.sleep(seconds)
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)
            return True

    async def _strike_network(self, blow: Blow) -> bool:
        proxy = self.proxies[blow.victim % len(self.proxies)]
        self.log(f"{blow.kind} before process {blow.victim % len(self.proxies) + 1} for {blow.seconds} s")
        if blow.kind == "cut":
            proxy.refusing = True
            proxy.cut()
            await asyncio.sleep(blow.seconds)
            proxy.refusing = False
            return True
        ways = [proxy.there, proxy.back]
        if blow.kind == "hold one way":
            ways = [ways[blow.victim % 2]]
        for way in ways:
            way.hold()
        await asyncio.sleep(blow.seconds)
        for way in ways:
            way.heal()
        return True

    # --- what is seen ---------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Read the stored watermarks again and again, and install the audit as soon as there is a log."""
        audited = False
        while True:
            with suppress(psycopg.Error):
                async with await psycopg.AsyncConnection.connect(self.postgres.url, autocommit=True) as connection:
                    while True:
                        audited = audited or await self._audit(connection)
                        if audited:
                            rows = await (
                                await connection.execute("SELECT name, value FROM ledger.watermark")
                            ).fetchall()
                            self._compare(dict(rows))
                        await asyncio.sleep(0.05)
            await asyncio.sleep(0.1)

    async def _audit(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        row = await (await connection.execute("SELECT to_regclass('ledger.checkpoint_log')")).fetchone()
        if row is None or row[0] is None:
            return False
        await connection.execute(AUDIT)
        return True

    def _compare(self, now: dict[str, int]) -> None:
        for name, before in self._watermarks.items():
            if now.get(name, before) < before or name not in now:
                self.regressions.append(f"{name}: {before} became {now.get(name)}")
        self._watermarks = now


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry.name))
    return found


def command_of(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


# --- the verdict --------------------------------------------------------------------------------------------------


def judged(url: str, expected: Expected) -> dict[str, int]:
    """Counts of what went wrong; all of them have to be zero."""
    with psycopg.connect(url) as connection:
        accounts = {
            row[0]: row[1:]
            for row in connection.execute("SELECT account, cents, times, digest FROM ledger.accounts").fetchall()
        }
        windows = {
            (account, ends): (times, fired)
            for account, ends, times, fired in connection.execute(
                "SELECT account, ends, times, fired FROM ledger.windows"
            )
        }
        (zombies,) = connection.execute("SELECT count(*) FROM public.zombies").fetchone() or (0,)
    lost = sum(max(0, times - accounts.get(name, (0, 0, 0))[1]) for name, (_, times, _) in expected.accounts.items())
    doubled = sum(max(0, row[1] - expected.accounts.get(name, (0, 0, 0))[1]) for name, row in accounts.items())
    return {
        "lost": lost,
        "doubled": doubled,
        "wrong accounts": sum(accounts.get(name) != row for name, row in expected.accounts.items()),
        "wrong windows": sum(windows.get(place) != (times, 1) for place, times in expected.windows.items())
        + len(windows.keys() - expected.windows.keys()),
        "commits of zombies": int(zombies),
    }


def chaos(
    minutes: float, seed: int, *, workers: int = 3, controllers: int = 2, lease_s: float = 2.5, every_s: float = 4.0,
    rate: int = ROWS_A_SECOND, every_ms: int = 0, hops: int = 0, plan: Sequence[Blow] | None = None,
    log: Callable[[str], None],
) -> dict[str, int]:  # fmt: skip
    """One run; counts of what went wrong, all of which have to be zero.

    The plan is drawn when it is not given; `every_ms` and `hops` are those of `write_ledger`.
    """
    plan = plan_of(seed, minutes, lease_s, every_s) if plan is None else plan
    with temporary_postgres() as postgres, tempfile.TemporaryDirectory(prefix="mw-chaos-", dir="/tmp") as directory:
        expected = write_ledger(Path(directory), minutes * 60 + 10, seed, rate, every_ms=every_ms, hops=hops)
        log(f"seed {seed}: {len(plan)} blows in {minutes:g} minutes, {expected.rows:,} rows")
        run = Chaos(Path(directory), postgres, lease_s, log)
        status = asyncio.run(run.run(plan, workers, controllers, 120 + 2 * minutes * 60))
        found = {**judged(postgres.url, expected), "watermarks that went back": len(run.regressions)}
        found["ended with a status"] = int(status != 0)
    log(f"{run.performed.total()} blows, {expected.rows:,} rows, each a record of both computations")
    log(f"blows: {dict(sorted(run.performed.items()))}; orders: {dict(sorted(run.storms.became.items()))}")
    log(f"found: {found}" + "".join(f"\n  {line}" for line in run.regressions[:10]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.cluster", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5, help="how long blows fall (default 5)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the plan (default: drawn)")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--controllers", type=int, default=2)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two blows, on average")
    parser.add_argument("--rate", type=int, default=ROWS_A_SECOND, help=f"rows a second (default {ROWS_A_SECOND})")
    parser.add_argument("--durability", choices=("checkpoints", "snapshots"), default="checkpoints")
    parser.add_argument("--interval", type=int, default=500, help="ms between two snapshots (default 500)")
    parser.add_argument("--loop", action="store_true", help=f"each amount goes on to {HOPS} more accounts, in a loop")
    given = parser.parse_args()
    began = time.monotonic()
    found = chaos(
        given.minutes, given.seed, workers=given.workers, controllers=given.controllers, every_s=given.every, rate=given.rate,
        every_ms=given.interval if given.durability == "snapshots" else 0, hops=HOPS if given.loop else 0,
        log=lambda line: print(f"{time.monotonic() - began:7.1f} {line}", flush=True),
    )  # fmt: skip
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
