"""What is wrong with a pipeline's parts is said where they are put together, and not when the first record comes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from millwheel import (
    Computation,
    DroppedCell,
    JsonCoder,
    ListCell,
    Pipeline,
    Stream,
    Table,
    TextCoder,
    ValueCell,
    subscribe,
)
from millwheel.api.computation import cells_of
from millwheel.errors import WiringError
from millwheel.launch import import_pipeline
from millwheel_injectors import IterableSource

words: Stream[str] = Stream("words", TextCoder())
table: Any = Table
"""Without its types, which refuse these mistakes as well."""


class OneArgument(Computation[str]):
    def ProcessRecord(self, record: Any) -> None:  # type: ignore[override]
        pass


class NoArgument(Computation[str]):
    def ProcessRecord(self, context: Any, record: Any) -> None:
        pass

    def ProcessTimer(self) -> None:  # type: ignore[override]
        pass


class AnyArguments(Computation[str]):
    def ProcessRecord(self, *arguments: Any) -> None:
        pass


class SetsUpLater(AnyArguments):
    async def setup(self) -> None:  # type: ignore[override]
        raise AssertionError("nobody awaits it")


class TearsDownLater(AnyArguments):
    def teardown(self) -> Any:
        yield


class OneCellTwice(AnyArguments):
    first = second = ValueCell(JsonCoder(int), default=0)


class Counting(AnyArguments):
    seen = ValueCell(JsonCoder(int), default=0)


def cells_of_names(formerly: str, **others: str | None) -> Any:
    """A computation whose cell `old` was `formerly` something else, and with other cells: dropped ones (None), or such."""
    cells: dict[str, Any] = {"old": ValueCell(JsonCoder(int), default=0, formerly=formerly)}
    for name, was in others.items():
        cells[name] = DroppedCell() if was is None else ValueCell(JsonCoder(int), default=0, formerly=was or None)
    return type("Named", (AnyArguments,), cells)


async def both(value: str) -> Any:
    yield value


class NotCounting(Counting):
    seen = None  # type: ignore[assignment]


class NoSubclass:
    name = "s"

    def discover(self, known: Any) -> list[Any]:
        return []


class Dropping(AnyArguments):
    old = DroppedCell()


class RoomLater(AnyArguments):
    async def has_room(self) -> bool:  # type: ignore[override]
        raise AssertionError("nobody awaits it")


class NoMethod(Computation[str]):
    ProcessRecord = 5  # type: ignore[assignment]


class CellForHook(AnyArguments):
    setup = ValueCell(JsonCoder(int), default=0)  # type: ignore[assignment]


class NeedsOne(AnyArguments):
    def __init__(self, size: int) -> None:
        self.size = size


def hook(context: Any, record: Any) -> None:
    raise AssertionError("it is no factory")


def letters(value: str) -> Any:
    yield from value


async def later(value: str) -> str:
    return value


@pytest.mark.parametrize(
    ("put", "says"),
    [
        (
            lambda p: p.add(OneArgument, [subscribe(words, str)]),
            r"OneArgument.ProcessRecord\(self, record\) is called with",
        ),
        (lambda p: p.add(NoArgument, [subscribe(words, str)]), r"write ProcessTimer\(self, context, timer\)"),
        (lambda p: p.add(SetsUpLater, [subscribe(words, str)]), r"SetsUpLater.setup is async or yields"),
        (lambda p: p.add(TearsDownLater, [subscribe(words, str)]), r"TearsDownLater.teardown is async or yields"),
        (
            lambda p: p.add(OneCellTwice, [subscribe(words, str)]),
            r"OneCellTwice.first is a cell that has the name 'second'",
        ),
        (lambda p: subscribe(words, later), "the key extractor of a subscription to 'words' is async or yields"),  # type: ignore[arg-type]
        (lambda p: subscribe(words, letters), "the key extractor of a subscription to 'words' is async or yields"),
        (lambda p: p.add(RoomLater, [subscribe(words, str)]), "RoomLater.has_room is async or yields"),
        (
            lambda p: p.add(NoMethod, [subscribe(words, str)]),
            "NoMethod.ProcessRecord is 5, and is called: make it a method",
        ),
        (lambda p: p.add(CellForHook, [subscribe(words, str)]), "CellForHook.setup is <.*ValueCell .*>, and is called"),
        (
            lambda p: p.add(NeedsOne, [subscribe(words, str)]),
            r"NeedsOne\(size\) is called without arguments .*: write add\(lambda: NeedsOne\(...\), ...\)",
        ),
        (
            lambda p: p.add(hook, [subscribe(words, str)]),
            r"hook\(context, record\) is called without arguments .* a hook is the method ProcessRecord of a class",
        ),
        (
            lambda p: p.add(lambda: AnyArguments, [subscribe(words, str)]),
            r"gives the class AnyArguments: write add\(Any",
        ),
        (lambda p: p.add(dict, [subscribe(words, str)]), "dict is not a Computation: subclass millwheel.Computation"),
        (lambda p: p.add(dict.fromkeys, [subscribe(words, str)]), "called without arguments to make a computation"),
        (lambda p: p.add(AnyArguments, [subscribe(words, str)], name=""), "computation name '': use 1 to 100 bytes"),
        (lambda p: Pipeline("p", durability=False), r"durability=False: use Checkpoints\(\) or Snapshots"),  # type: ignore[arg-type]
        (lambda p: p.add(AnyArguments, words), "computation 'AnyArguments': inputs must be a list, got Stream"),
        (
            lambda p: p.add(AnyArguments, subscribe(words, str)),
            "computation 'AnyArguments': inputs must be a list, got Input",
        ),
        (
            lambda p: p.add(AnyArguments, [subscribe(words, str)], words),
            "outputs must be a list of streams, got Stream",
        ),
        (
            lambda p: p.add(AnyArguments(), [subscribe(words, str)]),
            r"add needs a class or a factory, .*; write add\(AnyArg",
        ),
        (
            lambda p: p.add(lambda: 5, [subscribe(words, str)]),
            "int is not a Computation: subclass millwheel.Computation",
        ),
        (lambda p: subscribe(words, both), "the key extractor of a subscription to 'words' is async or yields"),
        (
            lambda p: p.add(AnyArguments, [subscribe(words, str)], formerly="a b"),
            "computation name 'a b': use 1 to 100",
        ),
        (
            lambda p: p.add(cells_of_names("other", other=""), [subscribe(words, str)]),
            "'old' was formerly 'other', which is",
        ),
        (
            lambda p: p.add(cells_of_names("gone", gone=None), [subscribe(words, str)]),
            "'old' was formerly 'gone', which is",
        ),
        (
            lambda p: p.add(cells_of_names("x", two="x"), [subscribe(words, str)]),
            "was formerly 'x', which is declared for",
        ),
        (lambda p: p.sink(table("a b", {"a": "text"}, ("a",))), "table name 'a b': use 1 to 100 bytes"),
        (
            lambda p: p.inject(IterableSource("s", []), into=words, max_ahead=5),
            "source 's': give both max_ahead=... and of=",
        ),
        (
            lambda p: p.inject(IterableSource("s", []), into=words, of="C"),
            "source 's': give both max_ahead=... and of=",
        ),
        (
            lambda p: p.inject(IterableSource("s", []), into=words, max_ahead=-1, of="C"),
            "a length of time is not negative",
        ),
        (lambda p: setattr(Counting(), "seen", 5), r"Counting.seen is a state cell: write self.seen.set\(...\)"),
        (lambda p: p.inject(NoSubclass(), into=words), "NoSubclass is no subclass of millwheel.source.Source"),
        (lambda p: p.inject(IterableSource("a b", []), into=words), "source name 'a b': use 1 to 100 bytes"),
        (lambda p: p.inject(IterableSource("s", []), into=words, percentile=1.0), "percentile is 1.0; give a share of"),
        (
            lambda p: p.inject(IterableSource("s", []), into=words, percentile=0.49),
            "percentile is 0.49; give a share of",
        ),
        (lambda p: p.inject(IterableSource("s", []), into=words, percentile=Fraction(3, 4)), "percentile is Fraction"),
        (lambda p: subscribe(words, str, key_version=2), "key_version is 2; give a text of up to 100 bytes"),  # type: ignore[arg-type]
        (
            lambda p: subscribe(words, str, key_version="\ud800" * 101),
            r"key_version is '(.ud800)+.*; give a text of up to 100 bytes",
        ),
        (
            lambda p: p.add(AnyArguments, [subscribe(words, str)], split_keys=7),
            "split_keys must be a list of keys, got 7",
        ),
        (
            lambda p: p.add(AnyArguments, [subscribe(words, str)], split_keys="ab"),
            "split_keys must be a list of keys, got 'ab'",
        ),
        (lambda p: subscribe(words, str, key_version="é" * 51), "key_version is 'é+.*; give a text of up to 100 bytes"),
        (lambda p: ListCell(TextCoder(), formerly="a b"), "formerly='a b' is no name that a cell can have had"),
        (lambda p: Dropping().old, "a cell of Dropping that is dropped has no values"),
        (lambda p: ValueCell(TextCoder, ""), "a state cell needs a coder, got the class TextCoder"),  # type: ignore[arg-type]
        (
            lambda p: p.sink(table("t", {"a": str}, ("a",))),
            "sink table 't': column 'a' has type <class 'str'>; use one of",
        ),
        (
            lambda p: p.sink(table("t", {"a": ["text"]}, ("a",))),
            r"column 'a' has type \['text'\]; use one of \['bigint'",
        ),
        (lambda p: p.sink(table("t", {"a": "text"}, ("a",), {"a": "varchar"})), "column 'a' has type 'varchar'"),
        (lambda p: p.publish(Stream("\ud800", TextCoder())), r"stream name '.ud800' is not valid Unicode"),
        (
            lambda p: (p.add(AnyArguments, [subscribe(words, str)], split_keys=["a", "\ud800"]), p.graph()),
            r"split key '.ud800' is not valid Unicode, as keys are",
        ),
        (lambda p: p.publish("words"), "publish needs a Stream, got 'words'"),
        (lambda p: p.drop(OneArgument), "computation name .* is type, not str"),
        (lambda p: p.drop("Old", input=7), "stream name 7 is int, not str"),
        (lambda p: p.sink(table("t", {5: "text"}, (5,))), "sink table 't': columns and key are names, got 5"),
        (lambda p: p.sink(table("t", {"a": "text"}, (["a"],))), r"columns and key are names, got \['a'\]"),
        (lambda p: p.sink(table("t", {"a": "text"}, ("a",), ["x"])), r"types maps columns to SQL types, got \['x'\]"),
    ],
)
def test_it_says_what_is_expected(put: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(WiringError, match=says):
        put(Pipeline("p"))


def test_what_is_just_within_the_bounds_is_fine() -> None:
    Pipeline("p").inject(IterableSource("s", []), into=words, percentile=0.5, max_ahead=0, of="C")
    assert subscribe(words, str, key_version="é" * 50).key_version == "é" * 50


def test_a_cell_that_a_subclass_has_replaced_is_none() -> None:
    assert [*cells_of(Counting)] == ["seen"]
    assert not cells_of(NotCounting)


def test_a_hook_that_takes_whatever_comes_is_fine() -> None:
    Pipeline("p").add(AnyArguments, [subscribe(words, str)])


def test_the_name_of_a_file_is_answered_with_that_of_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("counting.py").touch()
    with pytest.raises(WiringError, match=r"'counting.py' is a file: write its module, counting:pipeline"):
        import_pipeline("counting.py:pipeline")


@pytest.mark.parametrize(
    ("drop", "says"),
    [
        ({"computation": "Now"}, "computation 'Now' is dropped, and the pipeline still has it"),
        ({"computation": "Now", "input": words}, "computation 'Now' still reads stream 'words', which is dropped"),
        (
            {"computation": "Nwo", "input": "words"},
            "an input of computation 'Nwo' is dropped, and there is no such",
        ),
        ({"computation": "Then"}, "computation 'Now' was formerly 'Then', which is dropped: say one of both"),
    ],
)
def test_what_is_dropped_is_not_there(drop: dict[str, Any], says: str) -> None:
    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("source", []), into=words)
    pipeline.add(AnyArguments, [subscribe(words, str)], name="Now", formerly="Then")
    pipeline.drop("Elsewhere")
    pipeline.drop("Now", input="other")
    pipeline.graph()
    pipeline.drop(**drop)
    with pytest.raises(WiringError, match=says):
        pipeline.graph()
