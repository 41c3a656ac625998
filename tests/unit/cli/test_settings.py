"""The settings file: which place wins, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from millwheel.cli.main import main
from millwheel.cli.options import option
from millwheel.cli.settings import OTHERS, VARIABLE, misspelt, read_settings


def command() -> tuple[click.Group, dict[str, Any]]:
    """A command line of two commands and a group, and what its last call was given."""
    got: dict[str, Any] = {}

    @click.group()
    @click.option("--config", is_eager=True, expose_value=False, callback=read_settings)
    def root() -> None:
        pass

    @root.command()
    @option("--store")
    @option("--allow-rejected", type=click.IntRange(min=0))
    @option("-q", "--quiet", is_flag=True)
    @click.option("--yes", is_flag=True)
    def run(**given: Any) -> None:
        got.update(given)

    @root.group()
    def state() -> None:
        pass

    @state.command()
    @option("--store")
    @option("--host", multiple=True)
    def scan(**given: Any) -> None:
        got.update(given)

    return root, got


def call(tmp_path: Path, text: str, *words: str) -> dict[str, Any]:
    """What a command gets; the file is the one that lies there."""
    (tmp_path / "millwheel.toml").write_text(text)
    root, got = command()
    root.main([*words], standalone_mode=False)
    return got


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FILE = 'store = "file"\n[run]\nallow-rejected = 3\nquiet = true\n[state.scan]\nstore = "own"\nhost = ["a", "b"]\n'


def test_the_file_gives_what_nothing_else_gives(tmp_path: Path) -> None:
    assert call(tmp_path, FILE, "run") == {"store": "file", "allow_rejected": 3, "quiet": True, "yes": False}
    assert call(tmp_path, FILE, "state", "scan") == {"store": "own", "host": ("a", "b")}
    assert call(tmp_path, "", "state", "scan") == {"store": None, "host": ()}


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLWHEEL_STORE", "environment")
    assert call(tmp_path, FILE, "run")["store"] == "environment"
    assert call(tmp_path, FILE, "run", "--store", "line")["store"] == "line"


def test_a_file_that_is_named_is_read_instead_of_the_one_that_lies_there(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('store = "other"')
    assert call(tmp_path, FILE, "--config", "other.toml", "run")["store"] == "other"


@pytest.mark.parametrize(("text", "said"), [
    ("stoer = 1", "stoer is no setting. Did you mean store?"),
    ("[runn]\nquiet = true", "[runn] is no command. Did you mean run?"),
    ("[store]\nhost = 'a'", "[store] is no command"),
    ("[run]\nhost = 'a'", "host is no setting of [run]"),
    ("[run]\nalow-rejected = 1", "alow-rejected is no setting of [run]. Did you mean allow-rejected?"),
    ("[run]\nyes = true", "yes is no setting of [run]"),
    ("[state]\nhots = ['a']", "hots is no setting. Did you mean host?"),
    ("[run]\nallow-rejected = -1", "allow-rejected: -1 is not in the range x>=0."),
    ("[run]\nallow-rejected = true", "allow-rejected is True, and has to be a whole number"),
    ("[run]\nquiet = 1", "quiet is 1, and has to be true or false"),
    ("[state.scan]\nhost = 'a'", "host is 'a', and has to be a list"),
    ("run = 5", "run is a command, and not a setting: write its settings below [run]"),
    ("store = ''", "store is empty"),
    ("store = 5", "store is 5, and has to be a text: write store = \"5\""),
    ("store = 2026-03-01", "store is datetime.date(2026, 3, 1), and has to be a text"),
    ("[state.scan]\nhost = ['a', 5]", "host is ['a', 5], and has to be a list of texts"),
    ("[run]\nallow-rejected = 1.5", "allow-rejected is 1.5, and has to be a whole number"),
    ("[run]\nallow-rejected = 'three'", "allow-rejected: 'three' is not a valid integer range."),
    ("store = ", "is no TOML: Invalid value (at end of document)"),
])  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        call(tmp_path, text, "run")
    assert caught.value.message.startswith("the settings file millwheel.toml")
    assert said in caught.value.message


def test_a_file_that_is_no_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "millwheel.toml").write_bytes(b'store = "\xff"')
    assert main(["status", "a:b"]) == 2
    assert (
        "the settings file millwheel.toml is no TOML: 'utf-8' codec can't decode byte 0xff" in capsys.readouterr().err
    )


def test_what_stands_at_the_top_is_for_all_commands_and_a_table_wins_for_its_own(tmp_path: Path) -> None:
    for text, store in (
        ('store = "top"', "top"),
        ('store = "top"\n[state]\nstore = "group"', "group"),
        ('store = "top"\n[state]\nstore = "group"\n[state.scan]\nstore = "own"', "own"),
    ):
        assert call(tmp_path, text, "state", "scan")["store"] == store
        assert call(tmp_path, text, "run")["store"] == "top"


@pytest.mark.parametrize("given", ["3", "3.0", "'3'"])
def test_a_number_may_be_whole_or_a_text(given: str, tmp_path: Path) -> None:
    (tmp_path / "millwheel.toml").write_text(f"rate = {given}")
    got: list[float] = []

    @click.group()
    @click.option("--config", is_eager=True, expose_value=False, callback=read_settings)
    def root() -> None:
        pass

    @root.command()
    @option("--rate", type=float)
    def run(rate: float) -> None:
        got.append(rate)

    root.main(["run"], standalone_mode=False)
    assert got == [3.0]


def test_a_variable_that_names_no_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(click.BadParameter, match=f"{VARIABLE} is set and empty"):
        call(tmp_path, FILE, "run")
    with pytest.raises(click.BadParameter, match="it is empty; leave the option out, or name a file"):
        call(tmp_path, FILE, "--config", "", "run")
    assert call(tmp_path, FILE, "--config", "millwheel.toml", "run")["store"] == "file", "this one is named"


def test_only_variables_of_millwheel_that_set_nothing_are_misspelt() -> None:
    root, _ = command()
    right = [f"MILLWHEEL_{name}" for name in ("STORE", "CONFIG", *OTHERS)]
    assert [*misspelt(root, [*right, "STOR", "CONFG", "MILLWHEEL_OF_MINE"])] == []
    assert [said.split()[3] for said in misspelt(root, [*right, "MILLWHEEL_STOR"])] == ["MILLWHEEL_STOR"]


def test_a_file_that_is_named_and_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "nowhere.toml", "check", "a:b"]) == 2
    said = (
        "millwheel: the settings file nowhere.toml cannot be read: No such file or directory. See 'millwheel --help'.\n"
    )
    assert capsys.readouterr().err == said
    assert main(["--config", "", "check", "a:b"]) == 2


def test_the_help_says_which_place_wins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "command line wins over the environment" in " ".join(capsys.readouterr().out.split())


def test_the_own_help_needs_no_file_and_that_of_a_command_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "millwheel.toml").write_text("stoer = 1")
    assert main(["--help"]) == 0
    assert main(["run", "--help"]) == 2  # what it says of defaults would be wrong
    assert "stoer is no setting" in capsys.readouterr().err


def test_a_variable_that_is_misspelt_is_named_with_the_right_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a run takes another store than its operator means, and nothing says so."""
    given = {
        "STORE_URL": "x",
        "ALOW_REJECTED": "3",
        "CONFG": "x",
        "BENCH_ROUNDS": "3",
        "SEED": "1",
        "POSTGRES_USER": "x",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"MILLWHEEL_{name}", value)
    main(["check", "there_is_none:pipeline"])
    *said, _ = capsys.readouterr().err.splitlines()
    assert said == [
        "millwheel: the environment variable MILLWHEEL_ALOW_REJECTED sets nothing. Did you mean MILLWHEEL_ALLOW_REJECTED?",
        "millwheel: the environment variable MILLWHEEL_CONFG sets nothing. Did you mean MILLWHEEL_CONFIG?",
        "millwheel: the environment variable MILLWHEEL_STORE_URL sets nothing. Did you mean MILLWHEEL_STORE?",
    ]
