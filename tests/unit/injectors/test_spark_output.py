"""Spark's output, made by hand here as Spark makes it; the real thing is in tests/integration/test_spark_output.py."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.errors import SourceError
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.search import alone
from millwheel_injectors import BoundedDisorder, Exact, FileCreation, JsonLines, SparkOutputSource, TextLines
from millwheel_injectors import parquet as parquet_module
from millwheel_injectors.spark_log import SinkLog, partition_values
from millwheel_injectors.watermarks import Policy
from tests.effort import examples
from tests.unit.injectors.drain import (
    SEES_OPEN_FILES,
    Clock,
    only,
    opened,
    read_all,
    reject_lines,
    rows_of,
    stored,
    values_of,
)

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

T = 1_700_000_000_000_000
US = pa.timestamp("us", tz="UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Row(msgspec.Struct):
    user: str
    n: int
    ts: int


def table(numbers: Iterable[int]) -> Any:
    numbers = list(numbers)
    times = pa.array([T + n for n in numbers], US)
    return pa.table({"user": [f"u{n}" for n in numbers], "n": pa.array(numbers, pa.int64()), "ts": times})


def batch(directory: Path, *parts: Any, success: bool = True, **options: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(parts):
        pq.write_table(part, directory / f"part-{number:05}-x.parquet", **options)
    if success:
        (directory / "_SUCCESS").touch()
    return directory


def log(directory: Path, name: str, *paths: str, action: str = "add", version: str = "v1") -> None:
    (directory / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    entries = [
        {
            "path": f"file://{directory}/{path}",
            "size": (directory / path).stat().st_size,
            "isDir": False,
            "modificationTime": 1,
            "blockReplication": 1,
            "blockSize": 33554432,
            "action": action,
        }
        for path in paths
    ]
    (directory / "_spark_metadata" / name).write_text("\n".join([version, *map(json.dumps, entries)]))


def part(directory: Path, name: str, *numbers: int) -> str:
    directory.mkdir(exist_ok=True)
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_text("".join(json.dumps({"n": n, "ts": T + n}) + "\n" for n in numbers))
    return name


def numbers(source: SparkOutputSource) -> list[list[int]]:
    return [[v["n"] for v in values] for values in values_of(source).values()]


# which files


def test_batch_output_is_read_only_once_it_succeeded(tmp_path: Path) -> None:
    out = batch(tmp_path / "out", table([1]), success=False)
    with pytest.raises(SourceError, match="neither _spark_metadata nor _SUCCESS"):
        SparkOutputSource("s", out, "ts").discover(())
    with pytest.raises(SourceError, match=r"no directory at .*/none; check the path, or tail to wait for it"):
        SparkOutputSource("s", tmp_path / "none", "ts").discover(())
    waiting = SparkOutputSource("s", out, "ts", tail=True)
    assert waiting.discover(()) == []
    assert SparkOutputSource("s", tmp_path / "none", "ts", tail=True).discover(()) == []
    (out / "_temporary").mkdir()
    pq.write_table(table([2]), out / "_temporary" / "part-9.parquet")
    (out / ".part-00000-x.parquet.crc").write_bytes(b"x")
    (out / "_SUCCESS").touch()
    assert numbers(waiting) == [[1]]
    assert not waiting.complete()
    source = SparkOutputSource("s", out, "ts")
    assert not source.complete()
    assert [p.name for p in source.discover(())] == ["part-00000-x.parquet"]
    assert source.complete()
    assert source.discover({"part-00000-x.parquet"}) == []


@pytest.mark.parametrize("name", ["out=v1", "day=3/hits", "day=3/out=v1", "with space=1"])
def test_a_sink_whose_own_path_looks_like_a_partition(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / name
    out.mkdir(parents=True)
    log(out, "0", part(out, "day=7/part-0.json", 1), part(out, "part-1.json", 2))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(out)
    (tmp_path / "moved").mkdir()
    copies = [shutil.copytree(out, tmp_path / "moved" / copy) for copy in ("to", "x=1")]
    for place in (out, Path(name), tmp_path / "link", *copies):
        source = SparkOutputSource("s", place, "ts")
        found = values_of(source)
        assert list(found) == ["day=7/part-0.json", "part-1.json"]
        assert [[v.get("day") for v in values] for values in found.values()] == [["7"], [None]]


def test_several_runs_below_one_directory(tmp_path: Path) -> None:
    batch(tmp_path / "run2", table([2]))
    batch(tmp_path / "run1", table([1]), table([11]))
    batch(tmp_path / "run3", table([3]), success=False)
    source = SparkOutputSource("s", tmp_path, "ts", tail=True)
    assert list(values_of(source)) == [
        "run1/part-00000-x.parquet",
        "run1/part-00001-x.parquet",
        "run2/part-00000-x.parquet",
    ]
    for hidden in ("_run4", ".run5"):  # somebody has put them aside
        batch(tmp_path / hidden, table([4]))
    (tmp_path / "run3" / "_SUCCESS").touch()
    assert numbers(source) == [[1], [11], [2], [3]]


def test_a_streaming_sink_is_read_by_its_log_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    names = [part(out, f"part-{n}.json", n) for n in range(9)]
    part(out, "part-left-over.json", 99)
    (out / "_SUCCESS").touch()
    source = SparkOutputSource("s", out, "ts", tail=True)
    log(out, "0", names[1], names[0])
    assert numbers(source) == [[1], [0]]
    log(out, "1", names[2])
    (out / "_spark_metadata" / ".2.compact.tmp").write_text("torn")
    (out / "_spark_metadata" / ".1.crc").write_text("x")
    assert numbers(source) == [[1], [0], [2]]
    log(out, "2.compact", names[1], names[0], names[2], names[3])
    (out / "_spark_metadata" / "0").unlink()
    (out / "_spark_metadata" / "1").unlink()
    for number in range(3, 9):
        log(out, str(number))
    log(out, "10", names[5])
    log(out, "9", names[4])
    for again in (source, SparkOutputSource("s", out, "ts")):
        assert numbers(again) == [[1], [0], [2], [3], [4], [5]]
    log(out, "11", names[0], action="delete")
    assert numbers(source) == [[1], [2], [3], [4], [5]]


@pytest.mark.parametrize("missing", [0, 1, 4])
def test_batches_behind_one_that_is_missing_are_not_read_before_it(
    missing: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was not copied yet, for example.  A source that had read on behind it would never come back to it."""
    out = tmp_path / "out"
    names = [part(out, f"part-{n}.json", n) for n in range(7)]
    first = range(3) if missing < 2 else range(2, 6)
    batches = {n: ("2.compact", names[:3]) if n == first[0] == 2 else (str(n), [names[n]]) for n in first}
    for number in first:
        if number != missing:
            log(out, batches[number][0], *batches[number][1])
    tailing, known = SparkOutputSource("s", out, "ts", tail=True), set[str]()
    for _ in range(2):
        known |= {found.name for found in alone(tailing.search({*known}))}
    assert known == {*names[:missing]}
    assert (caplog.text.count("is missing, and later batches wait for it"), f"/{missing}" in caplog.text) == (1, True)
    with pytest.raises(SourceError, match=f"_spark_metadata/{missing}: is missing, and later batches are there"):
        SparkOutputSource("s", out, "ts").discover(())
    log(out, batches[missing][0], *batches[missing][1])
    known |= {found.name for found in alone(tailing.search({*known}))}
    assert known == {*names[: first[-1] + 1]}


@pytest.mark.parametrize("when", ["before the deletions are known", "before the files are"])
@pytest.mark.parametrize("times", [1, 2])
def test_spark_may_compact_its_log_while_it_is_read(
    when: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    names = [part(out, f"part-{n}.json", n) for n in range(4)]
    log(out, "0", names[0])
    log(out, "1", names[1])
    opened: list[int] = []
    entries = SinkLog._entries

    def compacting(self: SinkLog, path: Path) -> Any:
        opened.append(1)
        newest = len(opened)
        if newest in (1, 3)[:times] if when == "before the deletions are known" else newest == 3:
            log(out, "2.compact" if newest == 1 or times == 1 else "3.compact", *names[:3])
            path.unlink()
        return entries(self, path)

    monkeypatch.setattr(SinkLog, "_entries", compacting)
    found = SparkOutputSource("s", out, "ts").discover(())
    assert [partition.name for partition in found] == names[:3]


def test_a_log_is_read_once_however_often_its_source_is_searched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    names = [part(out, f"part-{n}.json", n) for n in range(2)]
    source, known = SparkOutputSource("s", out, "ts", tail=True), set[str]()
    for number, name in enumerate(names):
        log(out, str(number), name)
        (found,) = alone(source.search(known))
        known.add(found.name)
        assert found.name == name
        (out / "_spark_metadata" / str(number)).write_text("it is not looked at again")


@pytest.mark.parametrize("other", ["_delta_log", ".hoodie"])
@pytest.mark.parametrize("tail", [False, True])
def test_a_table_of_another_format_is_refused(other: str, tail: bool, tmp_path: Path) -> None:
    """Some of its files were replaced by others.  It has no _SUCCESS, so a source that waits would wait for ever."""
    part(tmp_path, "part-0.json", 1)
    (tmp_path / other).mkdir()
    for _ in range(2):
        with pytest.raises(SourceError, match=f"table, and {other}, which says what of it counts, is not read here"):
            SparkOutputSource("s", tmp_path, "ts", tail=tail).discover(())
        (tmp_path / "_SUCCESS").touch()
    with pytest.raises(SourceError, match=f"{tmp_path.name} is a .* table"):
        SparkOutputSource("s", tmp_path.parent, "ts", tail=tail).discover(())


@pytest.mark.parametrize("suffix", [".bz2", ".deflate", ".lz4", ".snappy", ".zst", ".zstd", ".xz"])
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_compression_that_is_not_gzip_is_refused(suffix: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / f"part-0.{kind}{suffix}").write_bytes(b"not text")
    (tmp_path / "_SUCCESS").touch()
    form = None if kind == "json" else TextLines()
    with pytest.raises(SourceError, match=f"compressed with {suffix[1:]}, and only gzip is read"):
        SparkOutputSource("s", tmp_path, lambda v: 1, format=form).discover(())


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("runs", [False, True])
def test_the_current_directory_may_be_read(
    partitioned: bool, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, name = tmp_path / ("run1" if runs else "."), ("day=7/" if partitioned else "") + "part-0.json"
    part(run, name, 1)
    (run / "_SUCCESS").touch()
    monkeypatch.chdir(tmp_path)
    for directory in (".", "./", tmp_path, f"../{tmp_path.name}"):
        assert list(values_of(SparkOutputSource("s", directory, "ts"))) == [("run1/" if runs else "") + name]


def test_a_log_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    name = part(out, "part-0.json", 0)
    for options, said in ({"version": "v2"}, "version b'v2'"), ({"action": "move"}, "unknown action"):
        log(out, "0", name, **options)
        with pytest.raises(SourceError, match=said):
            SparkOutputSource("s", out, "ts").discover(())
        (out / "_spark_metadata" / "0").unlink()
    (out / "_spark_metadata" / "0").write_text("v1\n{}")
    with pytest.raises(SourceError, match="not an entry"):
        SparkOutputSource("s", out, "ts").discover(())


@pytest.mark.parametrize("blank", ["", "  ", "\r", "\t"])
def test_a_log_may_have_blank_lines(tmp_path: Path, blank: str) -> None:
    out = tmp_path / "out"
    log(out, "0", part(out, "part-0.json", 0), part(out, "part-1.json", 1))
    entries = out / "_spark_metadata" / "0"
    entries.write_text(entries.read_text().replace("\n", f"\n{blank}\n") + f"\n{blank}\n")
    found = SparkOutputSource("s", out, "ts").discover(())
    assert len(found) == 2


def test_committed_files_that_are_gone_or_of_another_size_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    name = part(out, "part-0.json", 0)
    log(out, "0", name)
    part(out, name, 0, 1)
    with pytest.raises(SourceError, match="Spark committed"):
        SparkOutputSource("s", out, "ts").discover(())
    (out / name).unlink()
    with pytest.raises(SourceError, match="gone"):
        SparkOutputSource("s", out, "ts").discover(())


def test_a_moved_sink_is_still_found(tmp_path: Path) -> None:
    name = part(tmp_path / "out", "day=a b/part-0.json", 5)
    log(tmp_path / "out", "0", name)
    (tmp_path / "out").rename(tmp_path / "moved")
    assert list(values_of(SparkOutputSource("s", tmp_path / "moved", "ts")).items()) == [
        ("day=a b/part-0.json", [{"n": 5, "ts": T + 5, "day": "a b"}])
    ]


def test_a_moved_sink_keeps_all_of_its_partition_directories(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "day=7").mkdir(parents=True)
    names = [part(out, f"day=7/hour={hour}/part-0.json", hour) for hour in (1, 2)]
    log(out, "0", *names)
    out.rename(tmp_path / "moved")
    assert list(values_of(SparkOutputSource("s", tmp_path / "moved", "ts"))) == names


def test_unknown_files_need_a_format(tmp_path: Path) -> None:
    (tmp_path / "part-0.txt").write_text("x\n")
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(SourceError, match="pass format="):
        SparkOutputSource("s", tmp_path, lambda v: 1).discover(())
    source = SparkOutputSource("s", tmp_path, lambda v: 1, format=TextLines())
    assert list(values_of(source).values()) == [["x"]]


class Dated(msgspec.Struct):
    n: int
    day: int | None
    ts: int


def test_directory_columns_become_typed_values(tmp_path: Path) -> None:
    for kind in ("json", "parquet"):
        out = tmp_path / kind
        out.mkdir()
        for day in ("7", "__HIVE_DEFAULT_PARTITION__", "x"):
            place = out / f"day={day}"
            place.mkdir()
            if kind == "json":
                part(place, "part-0.json", 1)
            else:
                pq.write_table(table([1]).select(["n", "ts"]), place / "part-0.parquet")
        (out / "_SUCCESS").touch()
        source = SparkOutputSource("s", out, "ts", type=Dated, rejects=tmp_path / f"{kind}-rejects")
        got = {p.name.split("/")[0]: p for p in source.discover(())}
        assert rows_of(read_all(got["day=7"])) == [(0, Dated(1, 7, T + 1), T + 1)]
        assert rows_of(read_all(got["day=__HIVE_DEFAULT_PARTITION__"])) == [(0, Dated(1, None, T + 1), T + 1)]
        if kind == "json":
            assert [b.rejected for b in read_all(got["day=x"])] == [1]
        else:
            with pytest.raises(SourceError, match="day=x"):
                read_all(got["day=x"])


def test_rows_beside_directory_columns_keep_their_numbers_whatever_is_rejected_before_them(tmp_path: Path) -> None:
    """A row that is no JSON is rejected before its columns are there, and one of another type after that."""
    place = tmp_path / "out" / "day=7"
    place.mkdir(parents=True)
    good = f'{{"n": 1, "ts": {T}}}'
    (place / "part-0.json").write_text("\n".join(["no json", good, "", '{"n": "x", "ts": 1}', good, "neither", ""]))
    (tmp_path / "out" / "_SUCCESS").touch()
    source = SparkOutputSource("s", tmp_path / "out", "ts", type=Dated, rejects=tmp_path / "rejects")
    assert rows_of(read_all(only(source))) == [(row, Dated(1, 7, T), T) for row in (1, 4)]
    assert [(line.row, line.text) for line in reject_lines(tmp_path / "rejects")] == [
        (0, "no json"), (3, '{"n": "x", "ts": 1}'), (5, "neither"),
    ]  # fmt: skip
    assert sum(source.rejections().values()) == 3


class Loose(msgspec.Struct):
    n: int
    between: int = -1
    ts: int = -2
    day: int = -3


class Even(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError("an odd number")


def test_fields_with_defaults_have_what_the_file_and_its_directory_say_of_them(tmp_path: Path) -> None:
    pq.write_table(table([1]).select(["n", "ts"]), batch(tmp_path / "day=7", success=False) / "part-0.parquet")
    (tmp_path / "_SUCCESS").touch()
    partition = only(SparkOutputSource("s", tmp_path, "ts", type=Loose))
    assert rows_of(read_all(partition)) == [(0, Loose(1, -1, T + 1, 7), T + 1)]


def test_a_row_that_the_type_itself_refuses_is_rejected(tmp_path: Path) -> None:
    out = batch(tmp_path / "out", table(range(4)))
    source = SparkOutputSource("s", out, "ts", type=Even, rejects=tmp_path / "rejects")
    assert [row for row, _, _ in rows_of(read_all(only(source)))] == [0, 2]
    assert [line.row for line in reject_lines(tmp_path / "rejects")] == [1, 3]


@pytest.mark.parametrize("position", range(1, 10))
def test_a_restart_within_a_row_group_that_is_decoded_in_pieces_reads_the_rest(
    tmp_path: Path, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_module, "PARQUET_DECODE_ROWS", 2)
    source = SparkOutputSource("s", batch(tmp_path, table(range(10)), row_group_size=10), "ts", BoundedDisorder(3))
    first, again = only(source), only(source)
    (*_, batch_before) = [first.read(1) for _ in range(position)]
    assert batch_before is not None
    again.resume(position, batch_before.state)
    assert again.watermark() == first.watermark() == max(T, T + position - 1 - 3)
    assert [row for row, _, _ in rows_of(read_all(again))] == [*range(position, 10)]


@pytest.mark.parametrize("change", ["its beginning", "its length"])
def test_a_parquet_file_is_another_one_by_its_beginning_and_by_its_length(tmp_path: Path, change: str) -> None:
    source = SparkOutputSource("s", batch(tmp_path, table(range(5_000))), "ts")
    partition = only(source)
    state = partition.fingerprint()
    (file,) = tmp_path.glob("*.parquet")
    data = bytearray(file.read_bytes())
    if change == "its length":
        data += b"more"
    else:
        data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(SourceError, match="rewritten"):
        partition.resume(0, state)


@pytest.mark.parametrize("given", ["type", "format", "both", "neither"])
def test_values_beside_directory_columns_have_the_type_wherever_it_was_given(given: str, tmp_path: Path) -> None:
    part(tmp_path, "day=7/part-0.json", 1)
    (tmp_path / "_SUCCESS").touch()
    options: dict[str, Any] = {
        "type": Dated if given in ("type", "both") else None,
        "format": JsonLines(Dated) if given in ("format", "both") else None,
    }
    (values,) = values_of(SparkOutputSource("s", tmp_path, "ts", **options)).values()
    assert values == [{"n": 1, "ts": T + 1, "day": "7"} if given == "neither" else Dated(1, 7, T + 1)]


@pytest.mark.parametrize("kind", ["batch", "stream", "parquet"])
def test_directory_columns_are_as_they_were_before_spark_escaped_them(kind: str, tmp_path: Path) -> None:
    if kind == "parquet":
        batch(tmp_path / "day=a%2Fb%3D1", table([1]), success=False)
    else:
        name = part(tmp_path, "day=a%2Fb%3D1/part-0.json", 1)
    if kind == "stream":  # a log has URIs, in which the sign itself is escaped
        log(tmp_path, "0", name)
        place = tmp_path / "_spark_metadata" / "0"
        place.write_text(place.read_text().replace("%", "%25"))
    else:
        (tmp_path / "_SUCCESS").touch()
    ((value,),) = values_of(SparkOutputSource("s", tmp_path, "ts")).values()
    assert value["day"] == "a/b=1"


def test_directories_that_are_no_columns_are_left_out_as_spark_does(tmp_path: Path) -> None:
    for name in ("part-0.json", "day=7/part-1.json", "copies/part-2.json", "day=7/old/part-3.json"):
        part(tmp_path, name, 1)
    (tmp_path / "_SUCCESS").touch()
    assert list(values_of(SparkOutputSource("s", tmp_path, "ts"))) == ["day=7/part-1.json", "part-0.json"]


def test_directory_columns_beside_other_text_are_refused(tmp_path: Path) -> None:
    part(tmp_path, "day=7/part-0.txt", 1)
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(SourceError, match="understood for Parquet and JSON only"):
        SparkOutputSource("s", tmp_path, lambda v: 1, format=TextLines()).discover(())


# Parquet rows


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(1, 40), stop=st.integers(0, 120), group=st.integers(1, 50), older=st.booleans())
def test_a_restart_gives_the_same_row_numbers(tmp_path: Path, limit: int, stop: int, group: int, older: bool) -> None:
    out = batch(tmp_path / str(group), table(range(100)), row_group_size=group)
    source = SparkOutputSource("s", out, "ts", type=Row)
    whole = [(n, Row(f"u{n}", n, T + n), T + n) for n in range(100)]
    first = only(source)
    before, position, state = [], 0, first.fingerprint()
    while position < stop and (read := first.read(limit)):
        before.append(read)
        position, state = read.next_position, first.fingerprint() if older else read.state
    again = only(source)
    again.resume(position, state)
    assert rows_of(before) + rows_of(read_all(again, limit)) == whole
    assert again.finished()


class Wide(msgspec.Struct):
    n: float
    at: datetime
    day: date
    tags: list[str]
    inner: dict[str, int]
    extra: str = "none"


def test_other_types_go_through_msgspec(tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5)
    data = pa.table(
        {
            "n": pa.array([1], pa.int64()),
            "at": pa.array([at], pa.timestamp("us")),
            "day": pa.array([date(2026, 1, 2)]),
            "tags": [["a", "b"]],
            "inner": [{"x": 1}],
            "unused": ["u"],
        }
    )
    out = batch(tmp_path, data)
    (values,) = values_of(SparkOutputSource("s", out, "at", type=Wide)).values()
    assert values == [Wide(1.0, at, date(2026, 1, 2), ["a", "b"], {"x": 1})]
    (read,) = read_all(only(SparkOutputSource("s", out, "day", columns=["tags"])))
    assert (read.values, read.timestamps) == ([{"tags": ["a", "b"]}], [1_767_312_000_000_000])
    (read,) = read_all(only(SparkOutputSource("s", out, lambda v: v["n"])))
    assert (read.timestamps, read.values[0]["at"]) == ([1], 1_767_323_045_000_000)


class Positive(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(gt=0)]
    user: str | None
    ts: int | None


def test_rows_that_do_not_fit_the_type_are_rejected(tmp_path: Path) -> None:
    data = pa.table({"user": ["a", None, "c", "d"], "n": [1, 2, None, -4], "ts": pa.array([T, T + 1, T + 2, None], US)})
    out = batch(tmp_path / "out", data)
    type_: Any
    for type_, kept, why in [
        (Row, [0], ["column user is null", "column n is null", "column ts is null"]),
        (Positive, [0, 1], ["column n is null", "Expected `int` >= 1"]),
        (None, [0, 1, 2], ["event time: TimestampError"]),
    ]:
        rejects = tmp_path / f"{type_}"
        source = SparkOutputSource("s", out, "ts", type=type_, rejects=rejects)
        (read,) = read_all(only(source))
        assert (read.rows, read.rejected) == (kept, 4 - len(kept))
        lines = reject_lines(rejects)
        assert [line.row for line in lines] == [n for n in range(4) if n not in kept]
        assert all(line.reason.startswith(reason) for line, reason in zip(lines, why, strict=True))
        assert json.loads(lines[-1].text)["n"] == -4


def test_missing_columns_and_broken_files_are_named(tmp_path: Path) -> None:
    out = batch(tmp_path / "out", table([1]))

    class Other(msgspec.Struct):
        nowhere: int

    cases: list[tuple[dict[str, Any], str]] = [
        ({"event_time": "ts", "type": Other}, "no column nowhere"),
        ({"event_time": "ts", "columns": ["gone"]}, "no column gone"),
        ({"event_time": "when"}, "no event time column 'when'"),
    ]
    for options, said in cases:
        with pytest.raises(SourceError, match=said):
            only(SparkOutputSource("s", out, **options)).read(1)
    (out / "part-00000-x.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(SourceError, match="not a complete Parquet file"):
        only(SparkOutputSource("s", out, "ts")).read(1)
    whole = bytearray(next((batch(tmp_path / "whole", table([1]))).glob("*.parquet")).read_bytes())
    whole[20:40] = bytes(20)
    (out / "part-00000-x.parquet").write_bytes(whole)
    for policy in (None, Exact()):
        with pytest.raises(SourceError, match=r"part-00000-x\.parquet: a damaged Parquet file: .*; restore it"):
            only(SparkOutputSource("s", out, "ts", policy)).read(1)
    numbers = only(SparkOutputSource("s", batch(out, table([1])), "ts", type=int))
    with pytest.raises(ValueError, match="has no fields"):
        numbers.read(1)


def test_a_rewritten_parquet_file_is_refused(tmp_path: Path) -> None:
    out = batch(tmp_path, table(range(10)))
    read = only(SparkOutputSource("s", out, "ts")).read(3)
    assert read is not None
    batch(tmp_path, table(range(11)))
    partition = only(SparkOutputSource("s", out, "ts"))
    with pytest.raises(SourceError, match="rewritten"):
        partition.resume(3, read.state)
    with pytest.raises(SourceError, match="not of a Parquet file"):
        partition.resume(3, b"{}")
    partition.resume(12, partition.fingerprint())
    with pytest.raises(SourceError, match="has 11 rows, but 12"):
        partition.read(1)


def test_an_empty_parquet_file_is_finished_at_once(tmp_path: Path) -> None:
    partition = only(SparkOutputSource("s", batch(tmp_path, table([])), "ts", Exact()))
    assert partition.watermark() == MAX_TIME
    assert read_all(partition) == []
    assert partition.finished()


def test_large_rows_make_small_batches(tmp_path: Path) -> None:
    data = pa.table({"text": ["x" * 100_000] * 200, "ts": [T] * 200})
    reads = read_all(only(SparkOutputSource("s", batch(tmp_path, data), "ts")), 1000)
    assert len(reads) > 1
    assert reads[-1].next_position == 200


@SEES_OPEN_FILES
@pytest.mark.parametrize("policy", [Exact(), BoundedDisorder()])
def test_of_thousands_of_files_only_those_that_are_read_are_open(tmp_path: Path, policy: Policy) -> None:
    out = batch(tmp_path / "out", table(range(5)))
    partition = only(SparkOutputSource("s", out, "ts", policy))
    (place,) = out.glob("*.parquet")
    for _ in range(2):
        partition.resume(0, partition.fingerprint())
        partition.watermark()
        assert opened(place) == 0, "it waits for its turn"
        partition.read(2)
        assert opened(place) == 1
    while partition.read(2) is not None:
        pass
    assert (partition.finished(), opened(place)) == (True, 0)


# watermarks


def test_statistics_bound_a_file_that_is_not_read_yet(tmp_path: Path) -> None:
    out = batch(tmp_path, table(range(50, 100)), table(range(50)))
    source = SparkOutputSource("s", out, "ts", BoundedDisorder(5))
    later, earlier = source.discover(())
    assert (later.watermark(), earlier.watermark()) == (T + 50, T)
    later.read(20)
    assert later.watermark() == T + 64
    function = only(SparkOutputSource("s", batch(tmp_path / "one", table([1])), lambda v: int(v["ts"])))
    assert function.watermark() == MIN_TIME


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("function", [True, False])
def test_the_exact_watermark_of_parquet(tmp_path: Path, statistics: bool, function: bool) -> None:
    rows = [*range(10_000, 20_000), *range(10_000)]
    out = batch(tmp_path, table(rows), row_group_size=6_000, write_statistics=statistics)
    source = SparkOutputSource("s", out, (lambda v: int(v.ts)) if function else "ts", Exact(), type=Row)
    partition = only(source)
    assert partition.watermark() == T
    while read := partition.read(3_000):
        at = read.next_position
        rest = min(rows[at:], default=MAX_TIME)
        assert partition.watermark() <= T + rest
    assert partition.watermark() == MAX_TIME
    resumed = only(source)
    resumed.resume(18_000, resumed.fingerprint())
    assert T < resumed.watermark() <= T + 8_000


@pytest.mark.parametrize("kind", ["parquet", "json"])
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(times=st.lists(st.integers(0, 50), min_size=2, max_size=9), data=st.data())
def test_a_restart_promises_no_more_than_the_rows_before_it_have_shown(
    kind: str, times: list[int], data: st.DataObject, tmp_path: Path
) -> None:
    """The state that is stored may be that of a later row than the one from which reading goes on."""
    shutil.rmtree(tmp_path)
    if kind == "parquet":
        batch(tmp_path, table(times))
    else:
        part(tmp_path, "part-0.json", *times)
        (tmp_path / "_SUCCESS").touch()
    source = SparkOutputSource("s", tmp_path, "ts", BoundedDisorder(3))
    first = only(source)
    first.resume(0, first.fingerprint())
    promised, states = [first.watermark()], [first.fingerprint()]
    while read := first.read(1):
        promised.append(first.watermark())
        states.append(read.state)
    known = data.draw(st.integers(0, len(times) - 1))
    row = data.draw(st.integers(0, known))
    again = only(source)
    again.resume(row, states[known])
    assert again.watermark() <= promised[row]
    assert rows_of(read_all(again))[0][0] == row


TIMES = ["2026-08-01T12:00:00Z", "2026-08-01T12:00:00.5Z", "2026-08-01T13:00:00+05:00"]
"""The last one is the earliest, and the second one comes first where texts are sorted."""


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("policy", [Exact(), BoundedDisorder(5 * 3600 * 1_000_000)])
def test_times_that_are_texts_are_not_in_the_order_of_texts(tmp_path: Path, statistics: bool, policy: Policy) -> None:
    out = batch(tmp_path / "out", pa.table({"ts": ["", *TIMES]}), write_statistics=statistics)
    partition = only(SparkOutputSource("s", out, "ts", policy))
    before = partition.watermark()
    (read,) = read_all(partition)
    assert (len(read.rows), read.rejected) == (3, 1), "a text that is no time is a row to reject"
    assert before <= min(read.timestamps)
    assert before == (min(read.timestamps) if isinstance(policy, Exact) else MIN_TIME)


@pytest.mark.parametrize("policy", [Exact(), BoundedDisorder()])
def test_times_with_nanoseconds(tmp_path: Path, policy: Policy) -> None:
    out = batch(tmp_path / "out", pa.table({"ts": pa.array([1_000_000_001, -1_500], pa.timestamp("ns", "UTC"))}))
    partition = only(SparkOutputSource("s", out, "ts", policy))
    assert partition.watermark() == -2
    assert [read.timestamps for read in read_all(partition)] == [[1_000_000, -1]]


@pytest.mark.parametrize("policy", [Exact(), BoundedDisorder()])
def test_times_as_early_versions_of_spark_wrote_them_may_lie_in_any_century(tmp_path: Path, policy: Policy) -> None:
    """Nanoseconds in 64 bits end in the year 2262, and begin in 1677."""
    times = [datetime(year, 1, 1, tzinfo=UTC) for year in (1500, 2023, 9000)]
    out = batch(tmp_path / "out", pa.table({"ts": pa.array(times, US)}), use_deprecated_int96_timestamps=True)
    partition = only(SparkOutputSource("s", out, "ts", policy))
    expected = [int((time - EPOCH) / timedelta(microseconds=1)) for time in times]
    assert partition.watermark() in (MIN_TIME, expected[0])
    assert [read.timestamps for read in read_all(partition)] == [expected]


@pytest.mark.parametrize(("policy", "promised"), [(BoundedDisorder(60), T + 42 - 60), (Exact(), T + 40)])
def test_rows_of_later_files_may_be_as_late_as_those_of_one(tmp_path: Path, policy: Policy, promised: int) -> None:
    out = batch(tmp_path / "out", table([40, 42, 41]))
    source = SparkOutputSource("s", out, "ts", policy, ordered=True, tail=True)
    partition = only(source)
    partition.resume(0, partition.fingerprint())
    assert partition.watermark() == T + 40
    while partition.read(10) is not None:
        assert partition.watermark() >= T + 40
    assert source.discover([partition.name]) == []
    assert source.pending_watermark() == promised


def test_what_spark_commits_later(tmp_path: Path) -> None:
    out = tmp_path / "out"
    log(out, "0", part(out, "part-0.json", 100, 110))
    held = SparkOutputSource("s", out, "ts", tail=True)
    held.discover(())
    assert held.pending_watermark() == MIN_TIME
    clock = Clock(4)
    bounded = SparkOutputSource("s", out, "ts", tail=True, later_files_not_before=lambda: clock.now)
    bounded.discover(())
    clock.now = 5  # what came meanwhile was not looked for
    assert bounded.pending_watermark() == 4
    ordered = SparkOutputSource("s", out, "ts", BoundedDisorder(20), tail=True, ordered=True)
    assert ordered.pending_watermark() == MIN_TIME
    read_all(only(ordered))
    assert ordered.pending_watermark() == T + 90
    complete = SparkOutputSource("s", out, "ts")
    complete.discover(())
    assert complete.pending_watermark() == MAX_TIME
    with pytest.raises(ValueError, match="after their events"):
        SparkOutputSource("s", out, "ts", FileCreation())


def test_rows_the_pipeline_refuses_join_the_rejects(tmp_path: Path) -> None:
    source = SparkOutputSource("s", tmp_path, "ts", rejects=tmp_path / "rejects")
    source.reject("part-0", 3, "no key", Row("u", 1, T))
    assert reject_lines(tmp_path / "rejects")[0].row == 3


def test_an_id_column_is_read_from_structs_and_dicts(tmp_path: Path) -> None:
    for type_ in (Row, None):
        source = SparkOutputSource("s", batch(tmp_path / str(type_), table([7])), "ts", type=type_, record_id="user")
        ((value,),) = values_of(source).values()
        assert source.record_id is not None
        assert source.record_id(value) == "u7"


@pytest.mark.parametrize("options", [{"type": Row}, {"columns": ["n", "ts"]}])
def test_an_id_column_that_values_do_not_have_is_refused_at_once(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"source s: .* no column 'message' for record_id"):
        SparkOutputSource("s", tmp_path, "ts", record_id="message", **options)


def test_a_process_that_gets_a_source_again_finds_all_that_is_not_finished(tmp_path: Path) -> None:
    """It may have had it before another one did, or all has gone back to a snapshot."""
    out = tmp_path / "out"
    log(out, "0", part(out, "part-0.json", 0), part(out, "part-1.json", 1))
    source = SparkOutputSource("s", out, "ts")
    for _ in range(2):
        found = alone(source.search(known := set[str]()))
        assert [partition.name for partition in found] == ["part-0.json", "part-1.json"]
        known.update(partition.name for partition in found)
        assert alone(source.search(known)) == []
        source.recall([stored(partition, 0, partition.fingerprint()) for partition in found])


def test_parquet_without_pyarrow_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch(tmp_path, table([1, 2]))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (partition,) = SparkOutputSource("s", tmp_path, event_time=lambda row: 1).discover(())
    with pytest.raises(SourceError, match=r"Parquet needs pyarrow: pip install 'millwheel-streams\[spark\]'"):
        partition.read(10)


@pytest.mark.parametrize("stop", range(13))
def test_a_parquet_file_that_was_read_to_its_end_can_go_back_to_any_row(tmp_path: Path, stop: int) -> None:
    partition = only(SparkOutputSource("s", batch(tmp_path, table(range(12)), row_group_size=4), event_time="ts"))
    begun = partition.fingerprint()
    whole = rows_of(read_all(partition, 5))
    assert partition.finished()
    partition.resume(stop, begun)
    assert not partition.finished()
    assert rows_of(read_all(partition, 5)) == whole[stop:]
    assert partition.finished()


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_rejected_rows_of_parquet_are_numbered_by_their_places_in_the_file(tmp_path: Path, limit: int) -> None:
    there = table(range(12))
    broken = pa.array([None if n in (1, 9) else n for n in range(12)], pa.int64())
    batch(tmp_path / "out", there.set_column(1, "n", broken), row_group_size=4)
    source = SparkOutputSource("s", tmp_path / "out", event_time="ts", type=Row, rejects=tmp_path / "rejects")
    found = read_all(only(source), limit)
    assert [row for row, _, _ in rows_of(found)] == [row for row in range(12) if row not in (1, 9)]
    assert [line.row for line in reject_lines(tmp_path / "rejects")] == [1, 9]
    assert sum(each.rejected for each in found) == 2


@pytest.mark.parametrize("read", [1, 5, 11])
def test_a_parquet_file_that_is_being_read_can_go_back_or_on_to_any_row(tmp_path: Path, read: int) -> None:
    partition = only(SparkOutputSource("s", batch(tmp_path, table(range(12)), row_group_size=4), event_time="ts"))
    begun = partition.fingerprint()
    for stop in (0, 3, 4, 7, 2):
        partition.read(read)
        partition.resume(stop, begun)
        assert [row for row, _, _ in rows_of(read_all(partition, 5))] == [*range(stop, 12)]
        partition.resume(stop, begun)


def test_a_row_of_parquet_that_is_longer_than_a_read_should_be_is_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_module, "WORK_LIMIT_BYTES", 1)
    partition = only(SparkOutputSource("s", batch(tmp_path, table(range(3))), event_time="ts"))
    for row in range(3):
        found = partition.read(10)
        assert found is not None
        assert found.rows == [row]


def test_a_look_for_the_exact_watermark_of_parquet_rejects_nothing(tmp_path: Path) -> None:
    def at(row: dict[str, Any]) -> int:
        if row["n"] == 1:
            raise ValueError("no time")
        return int(row["ts"])

    source = SparkOutputSource("s", batch(tmp_path, table(range(3))), event_time=at, watermark=Exact())
    partition = only(source)
    assert (partition.watermark(), source.rejections()) == (T, {})
    assert [row for row, _, _ in rows_of(read_all(partition))] == [0, 2]
    assert sum(source.rejections().values()) == 1


def test_a_reject_file_among_the_committed_files_is_refused(tmp_path: Path) -> None:
    batch(tmp_path)
    (tmp_path / "part-0.json").touch()
    with pytest.raises(SourceError, match="among its own inputs"):
        SparkOutputSource("s", tmp_path, event_time="ts", tail=True, rejects=tmp_path / "part-0.json").discover(())


def test_a_value_in_the_name_of_a_directory_may_have_an_equals_sign() -> None:
    assert partition_values("k=a=b/part-0.json") == {"k": "a=b"}
