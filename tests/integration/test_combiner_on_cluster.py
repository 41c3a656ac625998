"""A combiner comes to a cluster that was killed, or goes, or other intervals come: the new version counts each word once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from millwheel_storage.embedded import EmbeddedPostgres
from tests.integration.test_cluster_run import LINES, WORDS, WORDS_A_LINE, Place, ended, until
from tests.patience import LEASE_S

pytestmark = [pytest.mark.postgres, pytest.mark.chaos, pytest.mark.timeout(900)]

COUNTED = WORDS.replace("lambda word: word)", "of_word)").replace(
    "self.seen.get() + 1)", "self.seen.get() + times(record.value))"
)
"""Values may stand for several words: "the*3"."""
FIRST = COUNTED.replace(
    "class Split",
    """
def of_word(value):
    return value.partition("*")[0]

def times(value):
    return int(value.partition("*")[2] or 1)

def merge(left, right):
    return f"{of_word(left)}*{times(left) + times(right)}"

class Split""",
)
SECOND = FIRST.replace("import Computation,", "import Computation, Gathering,").replace(
    '("g", "n", "t"))', '("g", "n", "t"), combiner=Gathering(merge, shards=3))'
)
RECUT = FIRST.replace('("g", "n", "t"))', '("c", "n", "o", "w"))')
DURABLE = 'Pipeline(os.environ["PIPELINE"])'


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, postgres.url, pipeline)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("second", "snapshots"),
    [pytest.param(SECOND, False, marks=pytest.mark.long), (SECOND, True), (RECUT, False)],
    ids=["combiner", "combiner-snapshots", "split-keys"],
)
def test_a_cluster_that_was_killed_goes_on(place: Place, second: str, snapshots: bool) -> None:
    def version(text: str) -> None:
        durable = "Pipeline(os.environ['PIPELINE'], durability=Snapshots(every_ms=200))"
        changed = text.replace(DURABLE, durable).replace("import Computation,", "import Snapshots, Computation,")
        (place.directory / "words.py").write_text(changed if snapshots else text)

    version(FIRST)
    later = place.directory / "2.jsonl"  # under snapshots a first epoch may have all that is there
    lines = later.read_text()
    later.unlink()
    lease = ("--lease", f"{LEASE_S:g}")
    names = ("controller", "worker", "worker")
    running = [
        place.command(role, "words:pipeline", "--name", f"{role} {n}", *lease, sleep_s=0.01, TAIL="1")
        for n, role in enumerate(names)
    ]
    place.until_counted(0.1)
    version(second)
    status, out = ended(place.command("worker", "words:pipeline", "--name", "new", *lease))
    assert (status, "cannot run beside the one that runs" in out) == (1, True), out
    for process in running:
        process.send_signal(signal.SIGKILL)
        process.wait()
    later.write_text(lines)
    assert sum(place.rows().values()) < LINES * WORDS_A_LINE
    living = f'SELECT count(*) FROM "{place.name}".lease WHERE expires > clock_timestamp()'
    until(lambda: place.connection.execute(living).fetchone() == (0,))
    status, out = ended(place.up("--workers", "2"))
    assert status == 0, out
    assert place.rows() == place.expected


WITHOUT = (
    WORDS.replace(
        "from millwheel_injectors",
        """from millwheel import MsgpackCoder
from millwheel.library import Combiner, Fixed, Flow, Pane, count
from millwheel_injectors""",
    )
    .replace(
        "pipeline.add(Count, [subscribe(words, lambda word: word)]",
        """panes = Stream("panes", MsgpackCoder(Pane[int]))
keyed = Flow(pipeline).read(words).key_by(lambda word: word, ("g", "n", "t"))
keyed.window(Fixed(minutes=1)).aggregate(count(), name="views").to(panes)
pipeline.add(Count, [subscribe(panes, lambda pane: pane.key)]""",
    )
    .replace("self.seen.get() + 1)", "self.seen.get() + record.value.value)")
)
WITH = WITHOUT.replace('name="views")', 'name="views", combiner=Combiner(3))')


@pytest.mark.parametrize(
    ("first", "second", "snapshots"),
    [(WITH, WITHOUT, True), pytest.param(WITHOUT, WITH, False, marks=pytest.mark.long)],
    ids=["goes-snapshots", "comes"],
)
def test_one_of_the_library_goes_and_comes(place: Place, first: str, second: str, snapshots: bool) -> None:
    """All words are of one window, which ends with the input."""

    def version(text: str) -> None:
        durable = "Pipeline(os.environ['PIPELINE'], durability=Snapshots(every_ms=200))"
        changed = text.replace(DURABLE, durable).replace("import Computation,", "import Snapshots, Computation,")
        (place.directory / "words.py").write_text(changed if snapshots else text)

    version(first)
    later = place.directory / "2.jsonl"
    lines = later.read_text()
    later.unlink()
    lease = ("--lease", f"{LEASE_S:g}")
    running = [
        place.command(role, "words:pipeline", "--name", f"{role} {n}", *lease, sleep_s=0.01, TAIL="1")
        for n, role in enumerate(("controller", "worker", "worker"))
    ]
    read = f'SELECT coalesce(sum(position), 0) >= {LINES // 5} FROM "{place.name}".source'
    until(lambda: place.connection.execute("SELECT to_regclass(%s)", (f'"{place.name}".source',)).fetchone() != (None,))
    until(lambda: place.connection.execute(read).fetchone() == (True,))
    version(second)
    for process in running:
        process.send_signal(signal.SIGKILL)
        process.wait()
    later.write_text(lines)
    assert not place.rows(), "the window is open"
    living = f'SELECT count(*) FROM "{place.name}".lease WHERE expires > clock_timestamp()'
    until(lambda: place.connection.execute(living).fetchone() == (0,))
    status, out = ended(place.up("--workers", "2"))
    assert status == 0, out
    assert place.rows() == place.expected
