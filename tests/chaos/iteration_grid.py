"""`make iteration-grid`: every policy, every algorithm, kills at a tenth to nine tenths of the way; also twice, and none.

`--endurance` is its other part: 200 supersteps of each, and what the driver's memory does (tests/chaos/endurance.py).

Ends with status 1 when a final state is not what the oracle says or a run takes longer than `LIMIT_S`. One line a run;
the figures are in build/iteration-grid.json and build/iteration-endurance.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from examples.graphs.cluster import spark
from examples.graphs.runs import POLICIES, rows_of
from tests.chaos import endurance
from tests.chaos.iteration import CASES, Case, Kills

SHARES = (0.1, 0.5, 0.9)
OUT = Path("build")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid, or the part that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.iteration_grid")
    parser.add_argument("--endurance", action="store_true", help=f"{endurance.SUPERSTEPS} supersteps and memory")
    parser.add_argument("--algorithm", choices=sorted({*CASES, *endurance.CASES}), action="append")
    parser.add_argument("--policy", choices=POLICIES, action="append")
    options = parser.parse_args(arguments)
    cases = endurance.CASES if options.endurance else CASES
    run = endurance.runs if options.endurance else _algorithm
    found: list[dict[str, Any]] = []
    with spark(2) as context:
        for name in cases:
            if name in (options.algorithm or cases):
                found += run(context, cases[name](context), options.policy or POLICIES)
    out = OUT / ("iteration-endurance.json" if options.endurance else "iteration-grid.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [one for one in found if one["wrong"]]
    for one in wrong:
        print(f"{one['algorithm']} {one['policy']}: {one['wrong']}")
    slowest = max((one["seconds"] for one in found), default=0.0)
    print(f"{len(found)} runs, {len(wrong)} wrong, the slowest {slowest:.0f} s; {out}")
    return 1 if wrong else 0


def _algorithm(context: SparkContext, case: Case, policies: Sequence[str]) -> list[dict[str, Any]]:
    calm = case.run(None, deliver=rows_of, listener=lambda event: None)
    assert case.judge(calm.value) is None, case.judge(calm.value)
    moments = sorted({max(1, min(calm.supersteps - 1, round(share * calm.supersteps))) for share in SHARES})
    plans: list[list[int]] = [[], *([at] for at in moments), [moments[0], moments[-1]]]
    return [_run(context, case, policy, plan) for policy in policies for plan in plans]


def _run(context: SparkContext, case: Case, policy: str, kills: list[int]) -> dict[str, Any]:
    path = (OUT / "iteration-grid").resolve()
    shutil.rmtree(path, ignore_errors=True)
    found, seconds = case.timed(case.policy(policy, path), Kills(context, after=kills))
    wrong = case.judge(found.value)
    lost = [len(recovery.lost) for recovery in found.recoveries]
    print(
        f"{case.name:<11}{policy:<11}kills after {kills!s:<10} {found.executed:>4} supersteps {seconds:6.1f} s, "
        f"partitions lost {lost}: {wrong or 'right'}", flush=True,
    )  # fmt: skip
    return {
        "algorithm": case.name, "policy": policy, "kills": kills, "supersteps": found.executed, "seconds": round(seconds, 2),
        "lost": lost, "wrong": wrong,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
