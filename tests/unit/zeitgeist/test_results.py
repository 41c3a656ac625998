"""What a run may take for its own in OUT, also after a kill between any two steps of starting over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.zeitgeist.logfile import check_unchanged, look_at
from examples.zeitgeist.results import FILES, FINISHED, PARSED, RUN, STORE, claim
from millwheel.errors import MillwheelError, SourceError


class Killed(BaseException):
    """Stands for `kill -9`: nothing catches it."""


def finished_run(out: Path, log: Path) -> None:
    claim(out, "zeitgeist", look_at(log), None)
    for name in (STORE, PARSED):
        (out / name).mkdir()
        for part in "ab":
            (out / name / part).touch()
    for name in FILES:
        (out / name).touch()


def kill_at_step(patch: pytest.MonkeyPatch, last: int) -> None:
    """Let the first `last` changes on disk happen, and none after them."""
    steps = iter(range(last))

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if next(steps, None) is None:
                raise Killed
            return change(*arguments, **named)

        return run

    for name in ("unlink", "rename", "write_bytes"):
        patch.setattr(Path, name, counted(getattr(Path, name)))

    def remove_some(path: Path) -> None:
        """Half a directory is removed, then the rest."""
        for part in sorted(Path(path).iterdir()):
            part.unlink()
        path.rmdir()

    patch.setattr(shutil, "rmtree", remove_some)


def test_killed_anywhere_in_starting_over_what_is_left_is_whole_and_of_one_log(tmp_path: Path) -> None:
    a, b, out = tmp_path / "a.log", tmp_path / "b.log", tmp_path / "out"
    a.write_text("a")
    b.write_text("b")
    last, killed = 0, True
    while killed:
        shutil.rmtree(out, ignore_errors=True)
        finished_run(out, a)
        with pytest.MonkeyPatch.context() as patch:
            kill_at_step(patch, last)
            try:
                claim(out, "zeitgeist", look_at(b), None, fresh=True)
                killed = False
            except Killed:
                last += 1
        for name in (STORE, PARSED):
            assert not (out / name).exists() or len(list((out / name).iterdir())) == 2
        if (out / FINISHED).exists():
            assert (out / STORE).exists()
        log, other = (a, b) if killed else (b, a)
        claim(out, "zeitgeist", look_at(log), None)
        with pytest.raises(MillwheelError, match="holds the results of"):
            claim(out, "zeitgeist", look_at(other), None)
        claim(out, "zeitgeist", look_at(other), None, fresh=True)
        assert [path.name for path in out.iterdir()] == [RUN]
    assert last > 10


def test_another_example_has_results_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("a")
    claim(tmp_path / "out", "zeitgeist", look_at(log), None)
    with pytest.raises(MillwheelError, match="the results of another example, 'zeitgeist'"):
        claim(tmp_path / "out", "queries", look_at(log), None)


def test_a_run_json_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("a")
    (tmp_path / RUN).write_text("{}")
    for fresh in (False, True):
        with pytest.raises(MillwheelError, match=r"run\.json was not written by an example"):
            claim(tmp_path, "zeitgeist", look_at(log), None, fresh)
    assert (tmp_path / RUN).read_text() == "{}"


def test_an_out_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("a")
    with pytest.raises(MillwheelError, match=r"cannot put results into .*a\.log"):
        claim(log, "zeitgeist", look_at(log), None)


def test_a_log_that_grows_while_it_is_read_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("a")
    before = look_at(log)
    check_unchanged(log, before)
    log.write_text("ab")
    with pytest.raises(SourceError, match="changed while it was read"):
        check_unchanged(log, before)


def test_the_default_out_is_of_the_log(tmp_path: Path) -> None:
    from examples.zeitgeist.__main__ import read_options

    def out(*arguments: str) -> str:
        return str(read_options("zeitgeist", "", None, arguments).out)

    assert out() == "build/zeitgeist"
    assert out("--log", "logs/mine.log.gz") == "build/zeitgeist-mine.log.gz"
    assert out("--log", "logs/mine.log.gz", "--out", "here") == "here"
