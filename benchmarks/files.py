"""A start with 100,000 finished files and one new one, text files and Spark output: time, memory, and the longest step.

Each of the finished files was read to its end by the pipeline itself, in waves; that takes minutes, so the filled stores are
kept in `build/bench`, and the next run of the same code goes on from there.  The clock starts with the new process, Python
and Postgres included, and stops when it has read the new file, committed its row and ended.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import common
from benchmarks.common import Reference, Result
from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, ValueCell, subscribe
from millwheel.launch import run
from millwheel_injectors import FileSource, JsonLines, SparkOutputSource

FILES: Final = common.sized("FILES", 100_000)
FEW: Final = 1_000
WAVE: Final = 2_500
"""Files that are open at the same time while the stores are filled."""
RUN_FILES: Final = 1_000
"""Files of one Spark run."""
ROUNDS: Final = common.sized("ROUNDS", 5)
LIMIT_S: Final = 3.0
FLAT: Final = 1.1
"""Memory of a start with all files to that with few: up to here it is the same."""
KINDS: Final = ("text", "spark")


def files() -> Result:
    """Benchmark: starts by the number of finished files."""
    path = _prepare()
    names = [f"{kind}-{count}" for kind in KINDS for count in (FEW, FILES)]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            found[name].append(_start(path / name))
    seconds = {name: common.median([one["seconds"] for one in starts]) for name, starts in found.items()}
    memory = {name: common.median([one["peak_mb"] for one in starts]) for name, starts in found.items()}
    steps = {name: max(one["longest_step_ms"] for one in starts) for name, starts in found.items()}
    value = max(seconds[f"{kind}-{FILES}"] for kind in KINDS)
    few = max(seconds[f"{kind}-{FEW}"] for kind in KINDS)
    grown = max(memory[f"{kind}-{FILES}"] / memory[f"{kind}-{FEW}"] for kind in KINDS)
    return Result(
        "files", value, "s",
        Reference(f"the same with {FEW:,} finished files", few, "s"), value / few,
        f"within {LIMIT_S:.0f} s with {FILES:,} finished files and one new; memory at most {FLAT} of that with {FEW:,}",
        value <= LIMIT_S and grown <= FLAT and FILES >= 100_000,
        {**{name: [one["seconds"] for one in starts] for name, starts in found.items()},
         "peak_mb": memory, "longest_step_ms": steps, "files": FILES},
        "" if FILES >= 100_000 else f"only {FILES:,} files",
    )  # fmt: skip


def _start(path: Path) -> dict[str, Any]:
    """One new file, and the process that reads it."""
    number = sum(1 for _ in _places(path))
    _make(path, number)
    began = time.monotonic()
    answered = common.call("files", path=str(path))
    if answered["injected"] != 1:
        raise RuntimeError(f"{path.name}: {answered['injected']} rows were read, not the one that is new")
    return answered | {"seconds": time.monotonic() - began}


def _prepare() -> Path:
    """A directory with the filled stores, made by this very code; an older one goes."""
    kept = common.OUT / "files-state"
    path = kept / _digest()
    for kind in KINDS:
        for count in (FEW, FILES):
            _fill(path / f"{kind}-{count}", count)
            # A run that was cut off may have left a file that nothing has read yet.
            common.call("files", path=str(path / f"{kind}-{count}"))
    for other in kept.iterdir():
        if other != path:
            shutil.rmtree(other)
    return path


def _fill(path: Path, count: int) -> None:
    done = path / "filled"
    while (filled := int(done.read_text()) if done.exists() else 0) < count:
        wave = min(WAVE, count - filled)
        for number in range(filled, filled + wave):
            _make(path, number)
        injected = common.call("files", path=str(path))["injected"]
        if injected != wave:
            raise RuntimeError(f"{path.name}: {injected} rows were read of {wave} that are new")
        done.write_text(str(filled + wave))
        print(f"files: {path.name}: {filled + wave:,}", file=sys.stderr, flush=True)


def _digest() -> str:
    """Of what decides what a filled store looks like."""
    packages = [common.ROOT / "injectors", common.ROOT / "storage"]
    sources = [source for package in packages for source in package.rglob("*.py")]
    text = hashlib.sha256(str(FILES).encode())
    for source in sorted([*sources, Path(__file__)]):
        text.update(source.read_bytes())
    return text.hexdigest()[:12]


def _make(path: Path, number: int) -> None:
    """File `number`, in both kinds of directories a JSON line; Spark's are in runs."""
    spark = path.name.startswith("spark")
    place = path / "in" / f"run-{number // RUN_FILES:05d}" if spark else path / "in"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"part-{number:06d}.json").write_text(f'{{"number": {number}}}\n')
    if spark:
        (place / "_SUCCESS").touch()


def _places(path: Path) -> Iterator[Path]:
    return (path / "in").glob("**/part-*.json")


# --- in the subprocess --------------------------------------------------------------------------------------------

Row = dict[str, Any]
ROWS: Final = Stream("rows", JsonCoder(dict[str, Any]))


class Count(Computation[Row]):
    """Counts."""

    count = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Row]) -> None:
        self.count.set(self.count.get() + 1)


class Steps:
    """How long the steps of a source's searches keep the event loop."""

    def __init__(self, source: Any) -> None:
        self.longest_s = 0.0
        self._search = source.search
        source.search = self.search

    def search(self, known: set[str]) -> Any:
        """The search, timed."""
        search, answer = self._search(known), None
        while True:
            began = time.perf_counter()
            try:
                step = search.send(answer)
            except StopIteration as end:
                return end.value
            finally:
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
            answer = yield step


def _pipeline(path: Path) -> None:
    source: Any
    if path.name.startswith("spark"):
        source = SparkOutputSource("rows", path / "in", event_time=lambda row: 1)
    else:
        source = FileSource("rows", path / "in", JsonLines(Row), event_time=lambda row: 1)
    steps = Steps(source)
    pipeline = Pipeline("files")
    pipeline.inject(source, into=ROWS)
    pipeline.add(Count, [subscribe(ROWS, key=lambda row: str(row["number"] % 1_000))])
    progress = run(pipeline, data=path / "data")
    common.answer(injected=progress.injected, longest_step_ms=steps.longest_s * 1_000, peak_mb=_peak_mb())


def _peak_mb() -> float:
    """The most memory that this process had; what `getrusage` says begins with that of its parent."""
    status = Path("/proc/self/status")
    if not status.exists():
        return common.resident_mb(os.getpid())
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    _pipeline(Path(common.arguments()["path"]))
