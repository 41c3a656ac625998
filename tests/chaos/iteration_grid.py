"""`make iteration-grid`: every policy, every algorithm, kills at a tenth to nine tenths of the way; also twice, and none.

Ends with status 1 when a final state is not what the oracle says or a run takes longer than `LIMIT_S`. One line a run;
the figures are in build/iteration-grid.json.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from examples.graphs.cluster import spark
from examples.graphs.runs import POLICIES, rows_of
from tests.chaos.iteration import CASES, Case, Kills

SHARES = (0.1, 0.5, 0.9)
LIMIT_S = 600.0
OUT = Path("build/iteration-grid.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid, or the part that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.iteration_grid")
    parser.add_argument("--algorithm", choices=sorted(CASES), action="append")
    parser.add_argument("--policy", choices=POLICIES, action="append")
    options = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    with spark(2) as context:
        for name in options.algorithm or CASES:
            found += _algorithm(context, CASES[name](context), options.policy or POLICIES)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [run for run in found if run["wrong"]]
    print(f"{len(found)} runs, {len(wrong)} wrong; {OUT}")
    return 1 if wrong else 0


def _algorithm(context: SparkContext, case: Case, policies: Sequence[str]) -> list[dict[str, Any]]:
    calm = case.run(None, deliver=rows_of, listener=lambda event: None)
    assert case.judge(calm.value) is None, case.judge(calm.value)
    moments = sorted({max(1, min(calm.supersteps - 1, round(share * calm.supersteps))) for share in SHARES})
    plans: list[list[int]] = [[], *([at] for at in moments), [moments[0], moments[-1]]]
    return [_run(context, case, policy, plan) for policy in policies for plan in plans]


def _run(context: SparkContext, case: Case, policy: str, kills: list[int]) -> dict[str, Any]:
    path = Path("build/iteration-grid").resolve()
    shutil.rmtree(path, ignore_errors=True)
    listener = Kills(context, after=kills)
    # A hang ends the process with every thread's stack, which says where.
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    began = time.monotonic()
    found = case.run(case.policy(policy, path), deliver=rows_of, listener=listener)
    seconds = time.monotonic() - began
    faulthandler.cancel_dump_traceback_later()
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
