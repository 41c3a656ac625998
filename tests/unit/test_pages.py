"""The pages and the code name the same things: options, figures, messages, settings, tables, public names.

A page that speaks of what is gone, and a thing that no page knows, are both found here.  Never here: whether a sentence is
true.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import pytest

from millwheel import launch
from millwheel.api.computation import Computation
from millwheel.api.context import Context
from millwheel.api.pipeline import Pipeline
from millwheel.api.state import ListCell, MapCell, ValueCell
from millwheel.cli import shown_progress
from millwheel.cli.metrics import Figures
from millwheel.cli.options import variable
from millwheel.cli.root import root
from millwheel.committed import Committed
from millwheel.core.interval import events
from millwheel.host import alphabet, messages
from millwheel.library import Chain, Flow, KeyedChain, WindowedChain
from millwheel.overview import ClusterOffice
from millwheel.source import Source, SourcePartition
from millwheel.testing import Outcome, Stepper
from millwheel_injectors import (
    BoundedDisorder,
    FileCreation,
    FileSource,
    IterableSource,
    Percentile,
    PushSource,
    SparkOutputSource,
)
from millwheel_storage.schema.ddl import metadata
from tests.unit.cli.test_metrics import PROGRESS
from tests.unit.test_house import tracked_files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

FENCE = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FILE = re.compile(r"[\w./-]+\.(?:py|md|proto|svg)")
FOLDER = re.compile(r"[a-z_]+/(?:[a-z_]+/)*")
MEMBER = re.compile(r"([A-Z]\w+)\.([a-z_]\w*)")
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@cache
def words(text: str) -> frozenset[str]:
    return frozenset(WORD.findall(text))


def lacks(text: str, names: set[str]) -> list[str]:
    """Those that are no word of `text`."""
    return sorted(names - words(text))


@cache
def everywhere() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in PAGES)


# The command


def commands(group: click.Group = root, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield path + name, command


def options(hidden: bool = False) -> set[str]:
    """Every option that is shown, or that is not, by its long name if it has one."""
    found = set()
    for _, command in commands():
        for option in command.params:
            if isinstance(option, click.Option) and option.hidden is hidden:
                found.add(next((name for name in option.opts if name.startswith("--")), option.opts[0]))
    return found


FOREIGN_OPTIONS = {"--column", "--config", "--help", "--strict", "--version"}
"""Of `millwheel` itself, of `millwheel_storage.part_files` and of mypy."""


def test_the_guide_has_every_command_and_every_option() -> None:
    guide = page("guide-command-line.md")
    listed = re.findall(r"^millwheel ([a-z]+(?: [a-z]+)?) +[A-Zb\[]", guide, re.MULTILINE)
    assert sorted(set(listed)) == sorted(name for name, _ in commands())
    spoken = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", guide))
    assert sorted(options() - spoken) == []


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "benchmarks.md"], ids=lambda path: path.name)
def test_an_option_of_the_command_that_a_page_gives_is_there(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if re.search(r"\bmillwheel [a-z]+", line)]
    given = {name for line in lines for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)}
    # Of the examples, the tests and other programs, which lines about `millwheel` do not name.
    assert sorted(given - options() - options(hidden=True) - FOREIGN_OPTIONS) == []


def test_a_target_of_make_that_a_page_gives_is_there_and_each_is_in_a_page() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    given = set(re.findall(r"`(?:\w+=\S+ )?make ([a-z-]+)", everywhere()))
    assert sorted(given - targets) == []
    assert sorted(targets - given - {"clean", "format", "help", "lock", "types", "venv", "wheel-test"}) == []


def test_a_variable_of_the_environment_that_a_page_gives_is_read_somewhere() -> None:
    given = set(re.findall(r"\bMILLWHEEL_[A-Z_]+\b", everywhere()))
    sizes = {name for name in given if name.startswith("MILLWHEEL_BENCH_")}  # put together by `benchmarks.common`
    assert len(given) > 5
    assert sorted(given - sizes - {variable(name) for name in options()} - known_words()) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_one_is_singular_as_in_what_a_command_prints(path: Path) -> None:
    printed = [line for line in path.read_text(encoding="utf-8").splitlines() if "millwheel: " in line]
    assert [line for line in printed if re.search(r"(?<![\d,])1 (?:rows|records|keys)\b", line)] == []


def test_the_guide_has_every_figure_for_prometheus_and_in_json() -> None:
    figures = Figures("p")
    figures.update(msgspec.structs.replace(PROGRESS, watermarks={"Count": 10, "source:text": 12}), 1.0)
    emitted = {f"{family.name}_total" if family.type == "counter" else str(family.name) for family in figures.collect()}
    told = set(re.findall(r"`(millwheel_[a-z_]+)`", page("guide-cluster.md")))
    assert told == emitted
    assert lacks(page("guide-command-line.md"), {*shown_progress.figures(PROGRESS)}) == []


# Hosts, cores and the store


def classes_of(module: Any) -> set[str]:
    return {
        name for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    }


def test_every_event_and_effect_of_a_core_is_in_the_table() -> None:
    alphabet_of_cores = {kind.__name__ for kind in (*get_args(events.Event), *get_args(events.Effect))}
    assert lacks(page("architecture-interval.md"), alphabet_of_cores) == []


def test_every_message_event_and_effect_of_a_host_is_described() -> None:
    answers = {"Discovery"}  # of an `Ask`, not of a host
    assert lacks(page("protocol.md"), classes_of(messages) | classes_of(alphabet) - answers) == []


SHOWN = [("protocol.md", messages), ("protocol.md", alphabet), ("architecture-interval.md", events)]


@pytest.mark.parametrize(("name", "module"), SHOWN, ids=["messages", "hosts", "cores"])
def test_what_crosses_a_boundary_is_shown_with_its_fields(name: str, module: Any) -> None:
    """A message that is shown with fields has all of them, unless it says "…"; the rest may show those that matter."""
    shown = dict(re.findall(r"`([A-Z]\w+)\(([^`)]*)\)`", page(name)))
    kinds = {kind: vars(module)[kind] for kind in classes_of(module) & shown.keys()}
    assert len(kinds) > 7
    wrong = {}
    for kind, made in kinds.items():
        told, fields = {*WORD.findall(shown[kind])}, {*made.__struct_fields__}
        if not told <= fields or (module is messages and "…" not in shown[kind] and told != fields):
            wrong[kind] = told ^ fields
    assert wrong == {}


def test_every_part_of_a_host_and_of_a_core_is_named() -> None:
    """So that a reader knows which question it answers."""
    cores = "".join(page(path.name) for path in DOCS.glob("architecture*.md"))
    for folder, text in (("host", page("protocol.md")), ("core", cores)):
        files = {path.name for path in (ROOT / "millwheel" / folder).rglob("*.py")} - {"__init__.py"}
        assert len(files) > 20
        assert sorted(files - set(re.findall(r"(\w+\.py)`", text))) == []


def test_every_message_on_the_wire_is_described() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "proto").glob("*.proto"))
    declared = set(re.findall(r"^(?:message|service) (\w+)", text, re.MULTILINE))
    assert len(declared) > 5
    # In a page they may be in the plural.
    assert lacks(re.sub(r"`s\b", "`", page("protocol.md")), declared) == []


def test_every_table_of_the_store_is_described() -> None:
    assert lacks("".join(map(page, ("architecture-store.md", "architecture-quarantine.md"))), {*metadata.tables}) == []


# What users call

PUBLIC = ("millwheel", "millwheel_injectors", "millwheel.library", "millwheel.testing", "millwheel.spark.iteration")


def public_names(module: str) -> set[str]:
    """What it exports, without an import of Spark's packages."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError(f"{module} has no __all__")


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_a_page(module: str) -> None:
    assert lacks(everywhere(), public_names(module)) == []


CALLS: list[tuple[str, tuple[type, ...], set[str]]] = [
    ("library.md", (Flow, Chain, KeyedChain, WindowedChain), {"add", "end", "feeds", "origin", "read_by"}),
    ("testing.md", (Stepper, Outcome), {"crashed", "echoes", "ended", "overtaken"}),
    ("guide-computations.md", (Computation, Context, ValueCell, ListCell, MapCell), {"kind"}),
]


@pytest.mark.parametrize(("name", "classes", "inner"), CALLS, ids=[name for name, *_ in CALLS])
def test_a_page_has_every_call_of_its_subject(name: str, classes: tuple[type, ...], inner: set[str]) -> None:
    """`inner` is what other parts of millwheel call."""
    public = {member for kind in classes for member in dir(kind) if not member.startswith("_")}
    assert len(public) > 10
    assert lacks(page(name), public - inner) == []


def test_the_calls_from_python_are_there_with_these_arguments() -> None:
    guide, homes = page("guide-command-line.md"), {"committed.": Committed, "office.": ClusterOffice}
    rows = [line for line in guide[guide.index("\n## From Python") :].splitlines() if line.startswith("| `")]
    checked, wrong = 0, []
    for line in rows:
        module = re.search(r"of `(millwheel\.[\w.]+)`", line)
        for home, name, given in re.findall(r"`((?:committed\.|office\.)?)(?:await )?(\w+)\(([^`)]*)\)`", line):
            place = homes[home] if home else import_module(module[1]) if module else launch
            found = getattr(place, name, None)
            told = set(re.findall(r"(?:^|, )(\w+)", given))
            checked += 1
            if found is None or not told <= {*inspect.signature(found).parameters}:
                wrong.append((name, sorted(told)))
    assert checked > 20
    assert wrong == []


def test_the_page_of_sources_has_every_argument_and_every_part_of_a_source() -> None:
    kinds = (FileSource, SparkOutputSource, IterableSource, PushSource, BoundedDisorder, Percentile, FileCreation)
    names = {name for kind in kinds for name in inspect.signature(kind).parameters} - {"clock"}  # for tests
    names |= {name for kind in (Source, SourcePartition) for name in vars(kind) if not name.startswith("_")}
    assert len(names) > 30
    assert lacks(page("injectors.md"), names) == []


def test_every_extra_that_a_user_may_install_is_in_a_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys() - {"bench", "dev", "examples"}  # which make installs
    named = re.findall(r"millwheel-streams\[([\w,]+)\]|extras? `(\w+)`(?: and `(\w+)`)?", everywhere())
    assert sorted(extras - {name for found in named for part in found for name in part.split(",")}) == []


def test_the_guide_has_every_setting_of_a_computation_and_its_default() -> None:
    guide = page("guide-computations.md")
    table = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", guide[guide.index("\n## Settings") :], re.MULTILINE))
    declared = inspect.signature(Pipeline.add).parameters.values()
    settings = {one.name: one.default for one in declared if one.kind is one.KEYWORD_ONLY}
    assert sorted(settings.keys() - table.keys()) == []
    shown = {"name": "the class's name", "cache_limit_bytes": "a share"}
    for name, default in settings.items():
        told = table[name].strip("`").replace('"', "'")
        assert told == shown.get(name, f"{default:,}" if type(default) is int else repr(default)), name


# Names in the text

FOREIGN = {
    # Programs, and settings and types of Postgres, Spark, Java, Flink and mypy
    "ALTER", "AutoCreateSharedArchive", "PASSWORD", "PID", "ROLE", "ScalableBloomFilter", "TIMESTAMP_MICROS", "TTIN",
    "authenticate", "closeWith", "cogroup", "cpus", "crypto", "fdatasync", "iterateDelta", "lz4", "open_datasync",
    "outputTimestampType", "pg_dump", "readStream", "terminationCriterion", "v2", "wal_sync_method", "writeStream", "zstd",
    # Names that an example makes up
    "Click", "Cnt", "Order", "Purchase", "cnt", "game", "gap_of_key", "north", "orders_controller", "orders_reader",
    "orders_worker", "page_counts", "revenue", "shop",
    # What was rejected
    "WallTime",
}  # fmt: skip
MADE = {"millwheel.toml", "wordcount.py", "hits.py", "game.py"}
"""Files that a user makes."""


@cache
def code() -> dict[str, str]:
    """Text by path of all that is no page."""
    kinds = {".py", ".proto", ".toml", ".yml", ".svg", ""}
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in tracked_files(ROOT)
        if path.suffix in kinds
        and path.stat().st_size < 400_000
        and path != Path(__file__)  # which names what is not there
    }


@cache
def known_words() -> frozenset[str]:
    return frozenset(word for text in code().values() for word in WORD.findall(text))


@cache
def known_places() -> frozenset[str]:
    """The ends of the paths of all files and folders: "host/worker.py" and "worker.py" are there."""
    files = [path.relative_to(ROOT) for path in tracked_files(ROOT)]
    places = {*files, *(folder for path in files for folder in path.parents)}
    return frozenset("/".join(place.parts[at:]) for place in places for at in range(len(place.parts)))


@cache
def known_classes() -> dict[str, list[str]]:
    """The text of the files in which each class is."""
    found: dict[str, list[str]] = {}
    for text in code().values():
        for name in CLASS.findall(text):
            found.setdefault(name, []).append(text)
    return found


def wrong_with(span: str) -> bool:
    """Whether code between backticks names what is not there."""
    if FILE.fullmatch(span) or FOLDER.fullmatch(span):
        return not (span in MADE or span.rstrip("/") in known_places() or span.startswith("build/"))
    member = MEMBER.fullmatch(span)
    if member is not None:
        homes = known_classes().get(member[1], [])
        return bool(homes) and not any(re.search(rf"\b{member[2]}\b", text) for text in homes)
    made = span.startswith(("millwheel_", "MILLWHEEL_"))  # names of figures and of variables are put together
    return not made and any(
        len(word) > 2 and word not in known_words() and word not in FOREIGN for word in WORD.findall(span)
    )


CHECKED = [path for path in PAGES if path.name not in {"benchmarks.md", "nexmark.md"}]


@pytest.mark.parametrize("path", CHECKED, ids=lambda path: path.name)
def test_what_a_page_names_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8").partition("\n## Figures")[0]
    shown = {word for block in FENCE.findall(text) for word in WORD.findall(block)}
    spans = {span for span in SPAN.findall(FENCE.sub("", text)) if not {*WORD.findall(span)} <= shown}
    assert sorted(span for span in spans if wrong_with(span)) == []


@pytest.mark.parametrize(
    "span", ["host/gone.py", "core/gone/", "Checkpoint.gone", "gone_name(x)", "millwheel.gone_module"]
)
def test_a_name_that_is_not_there_is_noticed(span: str) -> None:
    assert wrong_with(span.replace("gone", "go" + "ne"))


def test_who_was_replaced_says_by_whom_and_each_decision_has_its_number() -> None:
    heads = {
        path.name[:4]: re.sub(r"\]\([^)]*\)", "]", path.read_text(encoding="utf-8").partition("\n## ")[0])
        for path in (DOCS / "adr").glob("*.md")
    }
    pairs = [
        (number, other)
        for number, head in heads.items()
        for sentence in re.findall(r"(?:Replaces|Amends)[^.]*", head)
        for other in re.findall(r"\d{4}", sentence)
    ]
    assert len(pairs) > 4
    assert [(number, other) for number, other in pairs if number not in heads[other]] == []
    assert [number for number, head in heads.items() if not head.startswith(f"# {number}. ")] == []
