"""What holds for every test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.statements import opening
from millwheel_storage.testing import fresh_name, temporary_postgres
from tests import effort

# A busy machine is no wrong answer: the first example of a test that imports much took over Hypothesis' 200 ms in 30 of 48
# runs side by side.
settings.register_profile("gate", deadline=None, print_blob=True, derandomize=True, database=None, max_examples=30)
settings.register_profile("search", deadline=None, print_blob=True, max_examples=1_000)
settings.load_profile(effort.PROFILE)

# Directories of tests lie in memory where there is enough of it: a disk that is shared can hold a commit up for seconds, and
# leases run out.  Postgres runs as it ships.  What a killed process had written is there all the same: only a machine that
# stops would lose it, and none does here.
MEMORY = "/dev/shm"
MEMORY_BYTES = 6 * 1024**3
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY

ARCHIVES = "tests/integration/test_zeitgeist_parse.py"
"""Its first job leaves the class archive from which Spark's later JVMs start (docs/adr/0016-class-archive.md)."""

gc.disable()  # until all tests are found, for hardly anything of what is imported goes

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start inherits that: the tests that
# end a child by it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that may take longest begin first, then those with most tests of real processes: no worker ends alone.

    Files with Spark come behind the others, and `ARCHIVES` before all: until it has left an archive of Spark's classes, each
    JVM reads them from 270 files.
    """
    longest: dict[str, float] = {}
    real: Counter[str] = Counter()
    sparks: set[str] = set()
    for item in items:
        limit = item.get_closest_marker("timeout")
        name = item.nodeid.partition("::")[0]
        longest[name] = max(longest.get(name, 0), limit.args[0] if limit else 0)
        real[name] += any(item.get_closest_marker(kind) for kind in ("postgres", "spark"))
        if item.get_closest_marker("spark"):
            sparks.add(name)
    order = {
        name: (name == ARCHIVES, longest[name], real[name] > 0, name not in sparks, real[name]) for name in longest
    }
    items.sort(key=lambda item: order[item.nodeid.partition("::")[0]], reverse=True)


def pytest_collection_finish() -> None:
    """What all files import stays: each collection of garbage would look through it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests that have passed remark, by `record_property`, for whoever reads the end of the output."""
    for report in terminalreporter.getreports("passed"):
        for remark in [value for name, value in report.user_properties if name == effort.REMARK]:
            terminalreporter.write_line(str(remark))


@pytest.fixture(scope="session", autouse=True)
def sequencers_from_one() -> Iterator[str]:
    """In the process of a test a store's sequencers begin with 1, as in memory, with which many tests compare; what they
    begin with otherwise is given."""
    with pytest.MonkeyPatch.context() as patched:
        shipped = opening.BEGIN_SEQUENCERS
        patched.setattr(opening, "BEGIN_SEQUENCERS", "SELECT 1")
        yield shipped


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """One server for all tests of a session; each test takes a pipeline name of its own."""
    with temporary_postgres() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def no_spark_is_left() -> Iterator[None]:
    """Spark has one context in a process: a session that a file leaves behind is what the next file gets for its own."""
    yield
    pyspark = sys.modules.get("pyspark")
    left = pyspark and pyspark.SparkContext._active_spark_context
    assert not left, "this file has left a session of Spark behind: its fixture must stop it"


@pytest.fixture
def pipeline() -> str:
    return fresh_name()
