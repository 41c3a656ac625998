"""User code that ends a run outside of what a quarantine can take: the command never says that all is well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millwheel_storage.embedded import EmbeddedPostgres
from tests.patience import WAIT_S

pytestmark = pytest.mark.postgres

PIPELINE = """
import os, sys
from millwheel import Computation, Pipeline, Stream, TextCoder, subscribe
from millwheel.search import BlockingCall
from millwheel_injectors import IterableSource

WHERE = os.environ["WHERE"]
words = Stream("words", TextCoder())

if WHERE == "module":
    sys.exit()
if WHERE == "panic in module":
    raise GeneratorExit("odd")

def rows():
    if WHERE == "rows":
        raise KeyError("no such table")
    if WHERE == "exit in rows":
        sys.exit()
    return [("a", 1)]

def list_files():
    if WHERE == "thread":
        raise PermissionError("closed directory")

class Source(IterableSource):
    def search(self, known):
        yield BlockingCall(list_files)
        return (yield from super().search(known))
    def complete(self):
        if WHERE == "source":
            raise KeyError("no such place")
        return super().complete()

class Panic(BaseException):
    pass

def key(word):
    if WHERE == "key":
        sys.exit()
    return word

class Count(Computation[str]):
    def __init__(self):
        if WHERE == "init":
            raise KeyError("no such variable")
    def setup(self):
        if WHERE == "setup":
            raise KeyError("no such model")
        if WHERE == "exit in setup":
            sys.exit()
        if WHERE == "panic in setup":
            raise Panic("odd")
    def teardown(self):
        if WHERE == "teardown":
            raise KeyError("no such client")
        if WHERE == "exit in teardown":
            sys.exit()
    def ProcessRecord(self, context, record):
        if WHERE == "hook":
            sys.exit()
        if WHERE == "panic":
            raise Panic("odd")

def pipeline():
    if WHERE == "function":
        sys.exit(0)
    pipeline = Pipeline("ending_" + WHERE.replace(" ", "_"))
    pipeline.inject(Source("rows", rows), into=words)
    pipeline.add(Count, [subscribe(words, key=key)])
    return pipeline
"""


def ended(directory: Path, url: str, where: str) -> tuple[int, str]:
    """Exit status and standard error of a run of which `where` is wrong."""
    (directory / "ending.py").write_text(PIPELINE)
    millwheel = str(Path(sys.executable).with_name("millwheel"))
    done = subprocess.run(
        [millwheel, "run", "ending:pipeline", "--quiet", "--store", url], cwd=directory, text=True, capture_output=True,
        timeout=WAIT_S, env={**os.environ, "WHERE": where},
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("where", "status", "said"),
    [
        ("hook", 7, "error: Count: a hook has called sys.exit(None) at "),
        ("module", 1, "'ending' cannot be imported: it calls sys.exit(None)"),
        ("function", 1, "'ending:pipeline' cannot be made: it calls sys.exit(0)"),
        ("exit in setup", 1, "computation 'Count' cannot be made: it calls sys.exit(None) at "),
        ("exit in teardown", 1, "the teardown of computation 'Count' has failed: it calls sys.exit(None) at "),
        ("exit in rows", 1, "source 'rows' has failed: it calls sys.exit(None) at "),
        ("key", 1, "source 'rows' has failed: it calls sys.exit(None) at "),
    ],
)
def test_sys_exit_is_named_and_is_no_success(
    tmp_path: Path, postgres: EmbeddedPostgres, where: str, status: int, said: str
) -> None:
    found, err = ended(tmp_path, postgres.url, where)
    assert said in err
    assert found == status


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("init", "computation 'Count' cannot be made: KeyError: 'no such variable'"),
        ("setup", "computation 'Count' cannot be made: KeyError: 'no such model'"),
        ("panic in setup", "computation 'Count' cannot be made: Panic: odd"),
        ("teardown", "the teardown of computation 'Count' has failed: KeyError: 'no such client'"),
        ("rows", "source 'rows' has failed: KeyError: 'no such table'"),
        ("thread", "source 'rows' has failed: PermissionError: closed directory"),
        ("source", "source 'rows' has failed: KeyError: 'no such place'"),
    ],
)
def test_what_a_class_or_a_source_raises_is_shown_without_our_frames(
    tmp_path: Path, postgres: EmbeddedPostgres, where: str, said: str
) -> None:
    status, err = ended(tmp_path, postgres.url, where)
    assert status == 1
    lines = err.splitlines()
    assert lines[0] == f"millwheel: error: {said}"
    assert any('ending.py", line' in line for line in lines)
    assert "usercode.py" not in err
    assert "__main__.py" not in err
    assert "contextlib.py" not in err


def test_an_error_of_a_hook_that_is_no_exception_is_named_on_one_line(
    tmp_path: Path, postgres: EmbeddedPostgres
) -> None:
    status, err = ended(tmp_path, postgres.url, "panic")
    assert status == 7
    (line,) = err.splitlines()
    assert line.startswith("millwheel: error: Count: a hook has raised Panic at ")
    assert "which is no Exception and ends the process: odd; start it again" in line


def test_an_error_of_a_module_that_is_no_exception_is_named(tmp_path: Path, postgres: EmbeddedPostgres) -> None:
    status, err = ended(tmp_path, postgres.url, "panic in module")
    assert status == 1
    assert err.splitlines()[0] == "millwheel: 'ending' cannot be imported: GeneratorExit: odd"
    assert "launch.py" not in err
