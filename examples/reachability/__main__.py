"""`python -m examples.reachability`: pages that are reached while links arrive, compared with networkx.

It runs on a Postgres of its own, in one process or as a cluster, and kills processes of it a few times.  Then it compares
the pages after some prefixes of the links.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from examples.reachability.links import START_US, arriving
from examples.reachability.oracle import difference, prefixes
from examples.reachability.runs import Reachability, killed
from millwheel_storage.testing import temporary_postgres


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and compare; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.reachability", description=__doc__)
    parser.add_argument("--links", type=int, default=10_000, help="how many arrive (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=3, help="how often a process is killed (default: %(default)s)")
    parser.add_argument("--prefixes", type=int, default=100, help="how many are compared (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the links (default: %(default)s)")
    parser.add_argument("--durability", choices=("checkpoints", "snapshots"), default="checkpoints")
    parser.add_argument("--every-ms", type=int, default=200, help="between two snapshots (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="of a cluster; 0: one process (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.links < 1 or options.prefixes < 1:
        parser.error("--links and --prefixes are at least 1")
    with temporary_postgres() as postgres:
        job = Reachability(
            url=postgres.url, pipeline="reachability", links=options.links, seed=options.seed, split_keys=("p3", "p6"),
            snapshot_every_ms=options.every_ms if options.durability == "snapshots" else 0, workers=options.workers,
        )  # fmt: skip
        began = time.monotonic()
        kills = killed(job, options.kills, wait_s=(0.5, 3.0))
        took_s = time.monotonic() - began
        since, growth = job.since(), job.growth()
    for upto, pages in growth[:: max(1, len(growth) // 20)]:
        print(f"after {(upto - START_US) // 1_000_000:4} s of links: {pages:8,} pages")
    wrong = difference(arriving(options.links, options.seed), since, options.prefixes)
    compared = len(prefixes(options.links, options.prefixes))
    print(
        f"{options.links:,} links, {len(since):,} pages reached, {kills} kills, {took_s:.0f} s; "
        f"{compared} prefixes: {wrong or 'as networkx finds them'}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
