"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from millwheel.cli.options import Place, place
from millwheel.cli.settings import DEFAULT_FILE, VARIABLE, read_settings


@click.group()
@click.option("--config", envvar=VARIABLE, is_eager=True, expose_value=False, callback=read_settings)
def root() -> None:
    """A command line with one command."""


@root.command()
@place
def ask(place: Place) -> None:
    """Says what has to be typed to find the same store."""
    click.echo(" ".join(place.options()))


@pytest.mark.parametrize(
    ("typed", "variable", "file", "said"),
    [
        ([], None, None, ""),
        ([], "of the variable", None, ""),
        ([], None, "of the file", ""),
        (["--data", ".millwheel"], None, None, "--data .millwheel"),
        (["--data", ".millwheel"], "of the variable", None, "--data .millwheel"),
        (["--data", ".millwheel"], None, "of the file", "--data .millwheel"),
        (["--store", "postgresql://x"], None, "of the file", "--store URL"),
    ],
)
def test_what_finds_the_same_store_again(
    typed: list[str], variable: str | None, file: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if file is not None:
        Path(DEFAULT_FILE).write_text(f"data = {file!r}\n")
    done = CliRunner(env={"MILLWHEEL_DATA": variable}).invoke(root, ["ask", "a:b", *typed])
    assert (done.exit_code, done.output) == (0, f"{said}\n"), done.output


@pytest.mark.parametrize(("by_variable", "said"), [(False, "--data there"), (True, "")])
def test_what_a_settings_file_that_is_named_says_has_to_be_typed_again(
    by_variable: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that is shown does not name the file."""
    other = tmp_path / "other.toml"
    other.write_text("data = 'there'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MILLWHEEL_DATA", raising=False)
    named = [] if by_variable else ["--config", str(other)]
    env = {VARIABLE: str(other)} if by_variable else {}
    done = CliRunner(env=env).invoke(root, [*named, "ask", "a:b"])
    assert (done.exit_code, done.output) == (0, f"{said}\n"), done.output
