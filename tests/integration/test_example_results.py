"""OUT and LOG of the two examples: whose results OUT holds, what FRESH removes, and logs that cannot be read."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.queries.__main__ import LOG as QUERIES
from examples.queries.__main__ import main as queries
from examples.zeitgeist.__main__ import SLICE
from examples.zeitgeist.__main__ import main as zeitgeist
from millwheel_storage.embedded import EmbeddedPostgres

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).resolve().parents[2]


def example(name: str, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, standard output, and what the example itself (not Spark) says on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", *map(str, arguments)], cwd=ROOT, env=dict(os.environ),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    for trace in ("Traceback", "\tat ", "Exception"):
        assert trace not in done.stderr, done.stderr
    said = [line for line in done.stderr.splitlines(keepends=True) if line.startswith(f"{name}: ")]
    return done.returncode, done.stdout, "".join(said)


def inside(capsys: pytest.CaptureFixture[str], name: str, *arguments: str | Path) -> tuple[int, str, str]:
    """The same without a process of its own: for what is refused before anything starts."""
    status = {"queries": queries, "zeitgeist": zeitgeist}[name]([*map(str, arguments)])
    said, wrong = capsys.readouterr()
    return status, said, wrong


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    with gzip.open(QUERIES) as log:
        return log.readlines()


@pytest.fixture
def first(lines: list[bytes], tmp_path: Path) -> Path:
    path = tmp_path / "first.tsv"
    path.write_bytes(b"".join(lines[:600]))
    return path


@pytest.fixture
def second(lines: list[bytes], tmp_path: Path) -> Path:
    path = tmp_path / "second.tsv"
    path.write_bytes(b"".join(lines[600:900]))
    return path


def test_out_goes_on_with_its_own_log_and_refuses_every_other(first: Path, second: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, said, _ = example("queries", "--log", first, "--out", out)
    assert status == 0
    assert "queries: 600 queries;" in said
    found = (out / "anomalies.jsonl").read_bytes()

    status, said, wrong = example("queries", "--log", second, "--out", out)
    assert (status, said) == (1, "")
    assert wrong == (
        f"queries: {out} holds the results of {first}, and this is another log, {second}: give another OUT (--out), or "
        "drop those results with FRESH=1 (--fresh)\n"
    )
    elsewhere = first.rename(tmp_path / "moved.tsv")  # the same bytes are the same log
    status, said, _ = example("queries", "--log", elsewhere, "--out", out)
    assert status == 0
    assert "queries: this run is finished" in said
    assert (out / "anomalies.jsonl").read_bytes() == found

    elsewhere.rename(first)
    with first.open("ab") as log:
        log.write(second.read_bytes())
    status, said, wrong = example("queries", "--log", first, "--out", out)
    assert (status, said) == (1, "")
    assert f"queries: {first} has changed since {out} was made from it: it had 2" in wrong
    assert wrong.endswith("drop those results with FRESH=1 (--fresh)\n")

    status, said, _ = example("queries", "--log", first, "--out", out, "--fresh")
    assert status == 0
    assert "queries: 900 queries;" in said


def test_fresh_leaves_what_no_run_has_made(first: Path, second: Path, tmp_path: Path) -> None:
    """The log may lie in OUT, beside whatever else is there."""
    out = tmp_path / "work"
    (out / "drafts").mkdir(parents=True)
    (out / "thesis.txt").write_text("precious")
    (out / "drafts" / "store").write_text("precious, too")
    before = content(out)
    assert example("queries", "--log", first, "--out", out, "--fresh")[0] == 0
    mine = first.rename(out / "access.tsv")
    assert example("queries", "--log", mine, "--out", out, "--fresh")[0] == 0
    assert (out / "report.html").exists()
    assert content(out).items() >= {**before, "access.tsv": mine.read_bytes()}.items()

    inside = mine.rename(out / "report.html")
    status, said, wrong = example("queries", "--log", inside, "--out", out, "--fresh")
    assert (status, said) == (1, "")
    assert wrong == f"queries: the log {inside} is among the results that it is to make: give another OUT (--out)\n"
    assert inside.exists()


@pytest.mark.parametrize("fresh", [(), ("--fresh",)])
def test_a_directory_with_files_of_those_names_is_left_alone(
    first: Path, tmp_path: Path, fresh: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "work"
    (out / "store").mkdir(parents=True)
    (out / "store" / "goods.txt").write_text("precious")
    before = content(out)
    status, said, wrong = inside(capsys, "queries", "--log", first, "--out", out, *fresh)
    assert (status, said) == (1, "")
    assert (
        wrong
        == f"queries: {out / 'store'} was not made by a run of this example (no run.json): give another OUT (--out)\n"
    )
    assert content(out) == before


def test_a_store_of_ones_own_holds_the_run_of_one_out(
    first: Path, second: Path, tmp_path: Path, postgres: EmbeddedPostgres
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert example("queries", "--log", first, "--out", one, "--store", postgres.url, "--fresh")[0] == 0
    assert "finished" in example("queries", "--log", first, "--out", one, "--store", postgres.url)[1]
    status, said, wrong = example("queries", "--log", second, "--out", two, "--store", postgres.url)
    assert (status, said) == (1, "")
    assert "queries: the store already holds a run of 'queries', and not the one of " in wrong
    assert wrong.endswith("drop it with FRESH=1 (--fresh)\n")
    status, _, wrong = example("queries", "--log", first, "--out", one)
    assert status == 1
    assert "were made with another store" in wrong

    status, said, _ = example("queries", "--log", second, "--out", two, "--store", postgres.url, "--fresh")
    assert status == 0
    assert "queries: 300 queries;" in said
    assert not (two / "store").exists()

    before = content(one)  # its rows are gone, and those that are there are of another log
    status, said, wrong = example("queries", "--log", first, "--out", one, "--store", postgres.url)
    assert (status, said) == (1, "")
    assert f"queries: the store already holds a run of 'queries', and not the one of {one}: give its OUT" in wrong
    assert content(one) == before
    assert "finished" in example("queries", "--log", second, "--out", two, "--store", postgres.url)[1]


UNREADABLE = {
    "missing": (None, "missing.log", "there is no log at {log}"),
    "empty": (b"", "empty.log", "{log} is empty"),
    "not gzip": (b"hello\nworld\n", "hello.log.gz", "{log} is named .gz, but it is not gzip data"),
    "gzip by another name": (gzip.compress(b"hello\n"), "hello.log", "{log} is gzip data: name it .gz"),
}


@pytest.mark.parametrize("name", ["zeitgeist", "queries"])
@pytest.mark.parametrize("fault", UNREADABLE)
def test_a_log_that_is_no_log_is_named_before_anything_is_made(
    fault: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, file, words = UNREADABLE[fault]
    log = tmp_path / file
    if data is not None:
        log.write_bytes(data)
    status, said, wrong = inside(capsys, name, "--log", log, "--out", tmp_path / "out", "--fresh")
    assert (status, said) == (1, "")
    assert wrong.startswith(f"{name}: {words.format(log=log)}")
    assert wrong.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fault", ["cut off", "damaged", "no query"])
def test_a_query_log_that_breaks_off_is_named(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.tsv.gz"
    log.write_bytes(broken(QUERIES.read_bytes(), fault))
    status, _, wrong = inside(capsys, "queries", "--log", log, "--out", tmp_path / "out")
    assert status == 1
    assert wrong.splitlines()[-1].startswith(f"queries: {log} {NAMED[fault]}")
    assert not (tmp_path / "out").exists()


NAMED = {
    "cut off": "is cut off: its gzip data stops before the end",
    "damaged": "is damaged: ",
    "no query": "holds no query",
    "no line": "holds no line in Common Log Format: none of its 2 lines is one",
}


def broken(compressed: bytes, fault: str) -> bytes:
    match fault:
        case "cut off":
            return compressed[: len(compressed) // 2]
        case "damaged":
            middle = len(compressed) // 2
            return compressed[:middle] + bytes(64) + compressed[middle + 64 :]
        case _:
            return gzip.compress(b"hello\nworld\n")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["damaged", pytest.param("cut off", marks=pytest.mark.long), pytest.param("no line", marks=pytest.mark.long)],
)
def test_a_web_log_that_breaks_off_is_named_and_leaves_out_free(fault: str, tmp_path: Path) -> None:
    log, out = tmp_path / "access.log.gz", tmp_path / "out"
    log.write_bytes(broken(SLICE.read_bytes(), fault))
    status, _, wrong = example("zeitgeist", "--log", log, "--out", out)
    assert status == 1
    assert wrong.startswith(f"zeitgeist: {log} {NAMED[fault]}")
    assert wrong.count("\n") == 1
    assert content(out) == {}
