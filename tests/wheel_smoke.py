"""What the built wheel must do in an empty venv; scripts/wheel_test.py runs it there, as a program: the README's word
count on the embedded Postgres, twice, without Java; and a cluster, whose packages are not there, says so once.  Its argument
is the form in which hooks run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import millwheel
import millwheel_injectors
import millwheel_storage
from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, TextCoder, ValueCell, subscribe
from millwheel.forms import compiled
from millwheel.launch import open_store, run
from millwheel_injectors import IterableSource
from millwheel_storage.postgres.reader import Reader

words = Stream("words", TextCoder())


class Count(Computation[str]):
    """Counts each word."""

    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        """One more."""
        self.seen.set(self.seen.get() + 1)


def wordcount() -> Pipeline:
    """The README's pipeline."""
    pipeline = Pipeline("wordcount")
    text = [(word, time) for time, word in enumerate(["to", "be", "or", "not", "to", "be"])]
    pipeline.inject(IterableSource("text", text), into=words)
    pipeline.add(Count, inputs=[subscribe(words, key=str)])
    return pipeline


def counts(data: Path) -> Iterator[tuple[str, bytes]]:
    """Committed counts by word."""
    with open_store(None, data) as url, Reader(url, "wordcount") as reader:
        for row in reader.scan_state("Count"):
            yield row.key, row.value


if __name__ == "__main__":
    for package in (millwheel, millwheel_storage, millwheel_injectors):
        print(f"{package.__name__}: {package.__file__}")
    form = "compiled" if compiled() else "interpreted"
    assert form == sys.argv[1], form
    place = Path(f"smoke-{form}").resolve()
    for _ in range(2):
        assert run(wordcount(), data=place).finished
        assert dict(counts(place)) == {"to": b"2", "be": b"2", "or": b"1", "not": b"1"}, dict(counts(place))
    Path("counting.py").write_text("from wheel_smoke import wordcount\npipeline = wordcount()\n", encoding="utf-8")
    command = [sys.executable, "-m", "millwheel", "up", "counting:pipeline"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    up = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (up.returncode, up.stdout) == (1, ""), up
    assert up.stderr == "millwheel: h2 is missing: pip install 'millwheel-streams[cluster]'\n", up
    print(f"millwheel {version('millwheel-streams')}: the word count is right, twice; hooks are {form}")
