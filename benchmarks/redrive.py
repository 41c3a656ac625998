"""20,000 keys in quarantine, redriven at once, beside the same records where no hook ever failed."""

from __future__ import annotations

import time
from typing import Any, Final

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from millwheel import Computation, Context, MsgpackCoder, Pipeline, Record, ValueCell, subscribe
from millwheel.committed import Committed
from millwheel.launch import run as run_on

KEYS: Final = common.sized("KEYS", 20_000)
ROUNDS: Final = common.sized("ROUNDS", 3)
LIMIT_S: Final = 20.0
STEP_US: Final = 1_000
GOOD: Final = 100
"""Keys whose hooks never fail: the first that are met, so that not everything looks broken."""


def redrive() -> Result:
    """Benchmark 7."""
    mended: list[dict[str, Any]] = []
    clean: list[dict[str, Any]] = []
    with common.server("redrive") as url:
        for turn in range(ROUNDS):
            common.call("redrive", url=url, name=f"broken_{turn}", broken=True, keys=KEYS)
            mended.append(common.call("redrive", url=url, name=f"broken_{turn}", broken=False, keys=KEYS))
            clean.append(common.call("redrive", url=url, name=f"clean_{turn}", broken=False, keys=KEYS))
    value = common.median([sample["seconds"] for sample in mended])
    reference = common.median([sample["seconds"] for sample in clean])
    return Result(
        "redrive", value, "s",
        Reference("a run of the same records in which no hook fails", reference, "s"), value / reference,
        f"{KEYS:,} quarantined keys redriven in at most {LIMIT_S:.0f} s", value <= LIMIT_S and KEYS >= 20_000,
        {"mended": mended, "clean": clean, "keys": KEYS},
        "" if KEYS >= 20_000 else f"only {KEYS:,} keys",
    )  # fmt: skip


# --- in the subprocess --------------------------------------------------------------------------------------------


class Fragile(Computation[bytes]):
    """Counts, if it is not broken."""

    count = ValueCell(MsgpackCoder(int), default=0)
    broken = False

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        self.count.set(self.count.get() + 1)
        if self.broken and int(record.key) >= GOOD:
            raise RuntimeError("not yet")


def _pipeline(given: dict[str, Any]) -> None:
    """Broken: every key but a few goes into quarantine, and the redrive of all is asked for.  Then: run it again."""
    records = GOOD + given["keys"]
    Fragile.broken = given["broken"]
    rows = [(flows.value_of(n, n), n * STEP_US) for n in range(records)]
    pipeline = Pipeline(given["name"])
    pipeline.inject(flows.Ready("rows", rows), into=flows.ENTERED)
    pipeline.add(Fragile, [subscribe(flows.ENTERED, key=flows.key_of)], name="fragile")
    began = time.perf_counter()
    progress = run_on(pipeline, given["url"])
    seconds = time.perf_counter() - began
    asked = 0
    with Committed(pipeline, given["url"]) as committed:
        if given["broken"]:
            asked = committed.redrive_all()
        counts = sum(cells["count"] for _, cells in committed.states("fragile"))
        left = len(committed.quarantined())
    expected = (GOOD, given["keys"]) if given["broken"] else (records, 0)
    if (counts, left) != expected or (given["broken"] and asked != given["keys"]):
        raise AssertionError(f"{counts} records counted, {left} keys in quarantine, {asked} redrives asked for")
    common.answer(seconds=seconds, redriven=progress.redriven, checkpoints=progress.checkpoints)


if __name__ == "__main__":
    _pipeline(common.arguments())
