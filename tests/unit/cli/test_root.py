"""The command line without a store: help, suggestions, completion, settings; and how quickly it answers."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest

from millwheel.cli.declared import pipelines
from millwheel.cli.main import main
from millwheel.cli.root import root


def leaves(group: click.Group, *before: str) -> list[tuple[str, ...]]:
    """Every command that is no group, as its words."""
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        found += leaves(command, *before, name) if isinstance(command, click.Group) else [(*before, name)]
    return found


LEAVES = leaves(root)
SLOW = {"asyncio", "psycopg", "rich", "sqlalchemy", "uvloop"}


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_help_and_its_options_are_set_from_the_environment(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: millwheel {' '.join(words)} " in shown
    if "--store" in shown:
        assert "MILLWHEEL_STORE" in shown
        assert "MILLWHEEL_DATA" in shown


def test_help_names_every_command_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(root.commands)
    assert not [line for line in listed if line.endswith("...")]  # cut off


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_a_misspelt_command_is_answered_with_the_right_one(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    right = words[-1]
    wrong = right[:1] + right[2:] + right[1:2] if len(right) > 3 else right + right[-1]
    assert main([*words[:-1], wrong]) == 2
    before, asks, after = capsys.readouterr().err.partition("Did you mean")
    assert f"No such command '{wrong}'." in before
    assert asks
    assert f"'{right}'" in after


def test_help_and_completion_import_nothing_slow() -> None:
    """A Tab or `--help` would else wait for what only a run needs."""
    code = (
        "import sys\nfrom millwheel.cli.main import main\nmain(['--help'])\n"
        f"print(sorted({SLOW!r} & {{name.partition('.')[0] for name in sys.modules}}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("begun", "found"), [
    ("", ["a:other", "a:pipeline", "b:p"]), ("a", ["a:other", "a:pipeline"]), ("a:p", ["a:pipeline"]), ("c", []),
])  # fmt: skip
def test_pipelines_of_a_directory_are_completed_without_running_them(
    tmp_path: Path, begun: str, found: list[str]
) -> None:
    (tmp_path / "a.py").write_text("raise SystemExit(9)\nother = m.Pipeline('x')\npipeline = Pipeline('y')\nq = 1\n")
    (tmp_path / "b.py").write_text("p = Pipeline('z')\n")
    (tmp_path / "broken.py").write_text("def (:\n")
    assert pipelines(begun, tmp_path) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_MILLWHEEL_COMPLETE" in capsys.readouterr().out


def test_the_shell_is_told_the_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {
        "_MILLWHEEL_COMPLETE": "bash_complete",
        "COMP_WORDS": "millwheel qua",
        "COMP_CWORD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert main([]) == 0
    assert capsys.readouterr().out == "plain,quarantine\n"


def test_a_warning_outside_of_a_run_is_a_line_as_errors_are(tmp_path: Path) -> None:
    code = (
        "import logging, sys\nfrom millwheel.cli.main import main\nmain(['--version'])\n"
        "logging.getLogger('millwheel').warning('it does not\\nstart yet')\nlogging.getLogger('other').warning('as it is')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr == "millwheel: warning: it does not start yet\nas it is\n"


@pytest.mark.parametrize(("to", "status", "said"), [
    (">/dev/full", 1, "millwheel: the output cannot be written: No space left on device\n"), (">&-", 0, ""),
    (">&- 2>&-", 0, ""),
])  # fmt: skip
def test_an_output_that_takes_nothing_is_no_traceback(to: str, status: int, said: str) -> None:
    if "full" in to and not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    asked = f"'{sys.executable}' -m millwheel completion bash {to}"
    found = subprocess.run(["sh", "-c", asked], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (status, "", said)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "nope:x"], []])
def test_a_terminal_that_is_gone_before_its_signal_comes_ends_it_as_the_signal_does(arguments: list[str]) -> None:
    terminal, slave = pty.openpty()
    os.close(terminal)  # it controls no process, so the signal never comes
    asked = [sys.executable, "-m", "millwheel", *arguments]
    with subprocess.Popen(asked, stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as process:
        os.close(slave)
        assert process.wait(60) == 130


def test_a_store_of_blanks_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "x:y", "--store", " "]) == 2
    assert "it is empty; leave the option out, or give a value" in capsys.readouterr().err


URL = "postgresql://x@127.0.0.1:1/x"


@pytest.mark.parametrize(
    ("environment", "typed", "is_clear"),
    [
        ({"MILLWHEEL_STORE": ""}, ["--store", URL], True),
        ({"MILLWHEEL_DATA": ""}, ["--data", "here"], True),
        ({"MILLWHEEL_DATA": "here"}, ["--store", URL], True),
        ({"MILLWHEEL_STORE": URL, "MILLWHEEL_DATA": "here"}, [], True),
        ({"MILLWHEEL_STORE": URL}, ["--data", ".millwheel"], False),
        ({"MILLWHEEL_STORE": ""}, ["--data", "here"], False),
        ({}, ["--data", "here", "--store", URL], False),
    ],
)
def test_what_is_typed_wins_over_the_environment_unless_both_name_a_store(
    environment: dict[str, str], typed: list[str], is_clear: bool, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("MILLWHEEL_STORE", "MILLWHEEL_DATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["status", "nowhere:pipeline", *typed]) == (1 if is_clear else 2)
    assert ("there is no module 'nowhere'" in capsys.readouterr().err) == is_clear
