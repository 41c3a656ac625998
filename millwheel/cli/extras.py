"""Packages that are not installed with every millwheel.

Lives here: what is said when one is missing.  Never here: what they are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from millwheel.errors import ChannelError


@contextmanager
def of_clusters() -> Iterator[None]:
    """Imports of what only clusters need; `ChannelError` says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ChannelError(_missing(error.name)) from error


def check_cluster_packages() -> None:
    """Raises `ChannelError` here, before each process that is started says the same.

    Nothing is imported, because that takes time.
    """
    for package in ("h2", "grpc", "google.protobuf", "cryptography"):
        if not _is_there(package):
            raise ChannelError(_missing(package))


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # of its parent, and where something keeps it from being imported
        return False


def _missing(package: str | None) -> str:
    return f"{package} is missing: pip install 'millwheel-streams[cluster]'"
