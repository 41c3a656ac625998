"""`python -m examples.queries`: Zeitgeist's pipeline over real search queries (the paper's own example, §2).

Every query counts for itself (in lower case, blanks collapsed) and for the whole engine.  The log is in order of
user, so rows are up to a day out of order: the declared disorder says so, and nothing is late.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from examples.queries.log import read_queries
from examples.zeitgeist import observed, pipeline, results
from examples.zeitgeist.__main__ import WiredPipeline, conclude, read_options
from examples.zeitgeist.detector import Scope
from examples.zeitgeist.logfile import check_unchanged, look_at
from examples.zeitgeist.model import WINDOW_US
from millwheel import DAY
from millwheel.errors import MillwheelError, SourceError
from millwheel_injectors import BoundedDisorder, IterableSource

LOG = Path(__file__).parent / "data" / "excite-1997-09-16.tsv.gz"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or resume; returns the exit status."""
    options = read_options("queries", "user, yymmddHHMMSS and query, by tabs; plain or gzip", __doc__, arguments)
    log = options.log or LOG
    try:
        found = look_at(log)
        ready = job(log, options.out)
        check_unchanged(log, found)
        results.claim(options.out, "queries", found, options.store, options.fresh)
        return conclude(ready, options.store)
    except MillwheelError as error:
        print(f"queries: {error}", file=sys.stderr)
        return 1


def job(log: Path, out: Path) -> WiredPipeline:
    """The queries of `log` as Zeitgeist's input."""
    rows = list(read_queries(log))
    if not rows:
        raise SourceError(f"{log} holds no query: none of its lines is user, yymmddHHMMSS, query")
    source = IterableSource("queries", rows, BoundedDisorder(DAY))
    end_us = observed.input_end(max(time_us for _, time_us in rows))
    windows: dict[tuple[Scope, str], dict[int, int]] = {}
    for request, time_us in rows:
        start_us = time_us - time_us % WINDOW_US
        windows.setdefault(("site", ""), Counter())[start_us] += 1
        if request.page:
            windows.setdefault(("page", request.page), Counter())[start_us] += 1
    return WiredPipeline(
        "queries",
        out,
        log.name,
        pipeline.build(source, end_us, name="queries"),
        min(time_us for _, time_us in rows),
        end_us,
        0,
        {"queries": len(rows)},
        lambda wanted: {key: windows[key] for key in wanted},
    )


if __name__ == "__main__":
    sys.exit(main())
