"""`python -m tests.planted.unit NAME FILE`: the unit tests of a file, with a bug planted; the status is pytest's."""

from __future__ import annotations

import sys

import pytest

import tests.mutants as registers_all_of_them
from tests.planted import planted


def main() -> int:
    """Run."""
    assert registers_all_of_them
    _, name, path = sys.argv
    with planted(name):
        return int(pytest.main(["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", path]))


if __name__ == "__main__":
    raise SystemExit(main())
