"""Laws of the house that ruff has no rule for: bounds stand in one place, invariants survive `python -O` and have numbers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("millwheel", "storage/millwheel_storage", "injectors/millwheel_injectors")
RELIABILITY = ROOT / "docs" / "reliability.md"
LIMITS = "millwheel/limits.py"
SIMULATOR = ("millwheel/testing", "tests/sim")

NO_BOUNDS = {
    "millwheel/bundles.py": {"CHECKPOINT_FORMAT"},  # what is stored
    "millwheel/core/ids/dedup.py": {"BLOCK_BITS"},  # a layout
    "millwheel/core/lowest.py": {
        "_ABSENT",
        "_BITS",
        "_LONGEST",
        "_MASK",
        "_PLACE",
        "_PLACE_BITS",
        "_SECOND",
    },  # a layout, and a unit
    "millwheel/core/ids/filters.py": {"_HASHES", "_LANE_BYTES", "_SUM_BITS"},  # a layout
    "millwheel/model.py": {"MIN_TIME", "MAX_TIME", "SECOND", "MINUTE", "HOUR", "DAY", "LARGEST_SECONDS"},  # units
    "millwheel/schemas.py": {"SCHEMA_FORMAT"},
    "millwheel/spark/iteration/checkpoints.py": {"FORMAT"},
    "millwheel/spark/java.py": {"MIN_JAVA"},  # a version
    "millwheel/transport/data_frames.py": {"OF_H2", "_PREAMBLE_BYTES", "_END_HEADERS"},  # of HTTP/2
    "millwheel/transport/push_form.py": {"PUSH_VERSION"},
    "millwheel/transport/wire_form.py": {"WIRE_VERSION"},
    "storage/millwheel_storage/postgres/prepared.py": {"BYTEA", "BIGINT", "TEXT"},  # types of Postgres
    "storage/millwheel_storage/schema/shape_checks.py": {"STORE_FORMAT"},
    "injectors/millwheel_injectors/parquet.py": {"STATE_VERSION"},
    "injectors/millwheel_injectors/partition.py": {"STATE_VERSION"},
}
"""Numbers that limit nothing: formats, versions, units, layouts."""


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.stem]


def is_number(value: ast.expr | None) -> bool:
    """Whether an expression is made of numbers only, and is not a name for another constant."""
    parts = list(ast.walk(value)) if value is not None else []
    allowed = ast.Constant | ast.BinOp | ast.UnaryOp | ast.Name | ast.operator | ast.unaryop | ast.expr_context
    numbers = [part for part in parts if isinstance(part, ast.Constant) and type(part.value) in (int, float)]
    return bool(numbers) and all(isinstance(part, allowed) for part in parts)


def numbers(text: str) -> set[str]:
    """Names in capitals that a module sets to a number."""
    found = set()
    for node in ast.parse(text).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper() and is_number(getattr(node, "value", None)):
                found.add(target.id)
    return found


def unexplained(text: str) -> list[str]:
    """Bounds without a reason right below them."""
    body = ast.parse(text).body
    return [
        ast.unparse(node.target)
        for node, following in zip(body, [*body[1:], None], strict=True)
        if isinstance(node, ast.AnnAssign)
        and not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
    ]


def bare_asserts(text: str) -> list[int]:
    return [node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)]


def test_bounds_stand_in_limits() -> None:
    found = {}
    for path in sources(*PACKAGES):
        name = path.relative_to(ROOT).as_posix()
        # The simulator and the test kit bound themselves; what they bound is no user's.
        if name != LIMITS and not name.startswith("millwheel/testing/"):
            found[name] = numbers(path.read_text(encoding="utf-8"))
    assert {name: names for name, names in found.items() if names} == NO_BOUNDS


def test_every_bound_has_its_reason() -> None:
    text = (ROOT / LIMITS).read_text(encoding="utf-8")
    assert unexplained(text) == []
    assert len(numbers(text)) > 120


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("SIZE: Final = 4 * 1024", {"SIZE"}),
        ("_WAIT_S = 0.5", {"_WAIT_S"}),
        ("QUIET_US = 5 * SECOND", {"QUIET_US"}),
        ("LOWEST: Final = -1", {"LOWEST"}),
        ("SAME: Final = OTHER", set()),
        ("NAMES: Final = ('a', 'b')", set()),
        ("count = 3", set()),
        ("def f():\n    LIMIT = 3", set()),
    ],
)
def test_a_bound_elsewhere_is_noticed(line: str, names: set[str]) -> None:
    assert numbers(line) == names


def test_a_bound_without_a_reason_is_noticed() -> None:
    assert unexplained('A: Final = 1\nB: Final = 2\n"""Two."""\nC: Final = 3\n') == ["A", "C"]


def test_no_check_goes_away_with_python_o() -> None:
    found = {str(path): bare_asserts(path.read_text(encoding="utf-8")) for path in sources(*PACKAGES)}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert bare_asserts("def f(x):\n    assert x\n") == [2]


# Invariants


def cited(text: str) -> set[str]:
    return set(re.findall(r"\bI\d+\b", text))


def listed() -> list[str]:
    page = RELIABILITY.read_text(encoding="utf-8")
    section = page[page.index("\n### Invariants\n") :].split("\n#", 2)[1]
    return re.findall(r"^\| (I\d+) \|", section, re.MULTILINE)


def test_invariants_are_numbered_once_and_the_simulator_checks_each() -> None:
    assert len(listed()) == len(set(listed())) > 10
    checked = set().union(*(cited(path.read_text(encoding="utf-8")) for path in sources(*SIMULATOR)))
    assert set(listed()) - checked == set()


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "docs"])
def test_an_invariant_that_is_cited_is_in_the_list(folder: str) -> None:
    pages = [*sources(folder), *(ROOT / folder).rglob("*.md")]
    unknown = {str(path): cited(path.read_text(encoding="utf-8")) - set(listed()) for path in pages}
    assert {path: names for path, names in unknown.items() if names} == {}
    assert cited("I5: a writer, and neither AI7 nor I5x") == {"I5"}


# Test modules

TESTED_IN = {
    "host/part_owner": "unit/host/test_partitions.py",
    "storage/memory/tables": "property/test_store_twin.py",
    "storage/part_files": "integration/test_part_files.py",
    "storage/postgres/catalogue": "unit/storage/postgres/test_store.py",
    "storage/postgres/orders": "unit/storage/postgres/test_reshapes.py",
    "storage/postgres/planned": "integration/test_change.py",
    "storage/postgres/query": "unit/storage/postgres/test_recovery.py",
    "storage/postgres/reads": "unit/storage/postgres/test_recovery.py",
    "storage/schema/ddl": "unit/storage/schema/test_reserved.py",
    "storage/schema/examine": "integration/test_change.py",
    "storage/testing": "property/test_store_twin.py",
}
"""Modules without a test module of their own, and where they are tested: what needs a server is tested with one."""


def own_test(name: str) -> Path:
    """The test module of a module, which is in the same room."""
    room, _, module = name.rpartition("/")
    return ROOT / "tests" / "unit" / room / f"test_{module}.py"


def modules() -> list[str]:
    rooms = {"core": "millwheel/core", "host": "millwheel/host", "storage": "storage/millwheel_storage"}
    found = []
    for room, folder in rooms.items():
        paths = (path.relative_to(ROOT / folder).with_suffix("") for path in sources(folder))
        found += [f"{room}/{path.as_posix()}" for path in paths if path.name != "__init__"]
    # Of statements it is asked which pages they read (tests/integration/test_plans.py).
    return [name for name in found if not name.startswith("storage/statements/")]


def test_every_module_of_core_host_and_storage_has_its_tests() -> None:
    assert len(modules()) > 80
    assert {name for name in modules() if not own_test(name).is_file()} == TESTED_IN.keys()
    assert [path for path in TESTED_IN.values() if not (ROOT / "tests" / path).is_file()] == []


def test_unit_tests_lie_in_the_rooms_of_what_they_test() -> None:
    rooms = {name.rpartition("/")[0] for name in modules()}
    found = {path.parent.relative_to(ROOT / "tests/unit").as_posix() for path in sources("tests/unit")}
    assert {room for room in found if room.split("/")[0] in ("core", "host", "storage")} <= {*rooms}


# Values

VALUES = (
    "millwheel/bundles.py",
    "millwheel/cluster.py",
    "millwheel/core/interval/events.py",
    "millwheel/graph.py",
    "millwheel/host/alphabet.py",
    "millwheel/host/messages.py",
    "millwheel/host/requests.py",
    "millwheel/model.py",
    "millwheel/ports.py",
    "millwheel/shape.py",
    "millwheel/source.py",
    "millwheel/work.py",
)
"""Where the values stand that cross a boundary: between cores, hosts, shells, stores and user code."""


def mutable(text: str) -> set[str]:
    """Structs that are not frozen, and do not say that they are borrowed for one invocation."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Struct") for base in node.bases):
            frozen = any(word.arg == "frozen" and ast.unparse(word.value) == "True" for word in node.keywords)
            borrowed = "borrowed for one invocation" in (ast.get_docstring(node) or "").lower()
            if not frozen and not borrowed:
                found.add(node.name)
    return found


def test_values_that_cross_a_boundary_are_frozen() -> None:
    found = {name: mutable((ROOT / name).read_text(encoding="utf-8")) for name in VALUES}
    assert {name: classes for name, classes in found.items() if classes} == {}


def test_a_value_that_is_not_frozen_is_noticed() -> None:
    text = 'class A(msgspec.Struct{}):\n    """{}"""\n'
    assert mutable(text.format("", "A value.")) == mutable(text.format(", frozen=False", "A value.")) == {"A"}
    assert mutable(text.format(", frozen=True", "A value.")) == set()
    assert mutable(text.format("", "Borrowed for one invocation.")) == set()


# Constructors

MANY_FIELDS = 4
PUBLIC = {"EmbeddedRun", "PartFiles"}
"""What users make, by position, since before this law."""
INNER = (
    "millwheel/core",
    "millwheel/host",
    "millwheel/runtime",
    "millwheel/testing/world",
    "storage/millwheel_storage",
)


def by_position(text: str) -> set[str]:
    """Classes whose constructor takes more than `MANY_FIELDS` arguments by position."""
    return {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for made in node.body
        if isinstance(made, ast.FunctionDef) and made.name == "__init__" and len(made.args.args) - 1 > MANY_FIELDS
    }


def test_constructors_with_many_fields_take_them_by_name() -> None:
    found = [by_position(path.read_text(encoding="utf-8")) for path in sources(*INNER)]
    assert set[str]().union(*found) == PUBLIC


def test_a_constructor_with_many_fields_is_noticed() -> None:
    line = "class A:\n    def __init__(self, a, b, c, d{}): ..."
    assert by_position(line.format(", e")) == {"A"}
    assert by_position(line.format("")) == by_position(line.format(", *, e")) == set()
