"""Packages that are not installed with every millwheel.

Lives here: what is said when one is missing.  Never here: what they are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from millwheel.errors import ChannelError


@contextmanager
def of_clusters() -> Iterator[None]:
    """Imports of what only clusters need; `ChannelError` says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ChannelError(f"{error.name} is missing: pip install 'millwheel-streams[cluster]'") from error


def check_cluster_packages() -> None:
    """Raises `ChannelError` here, before each process that is started says the same."""
    with of_clusters():
        for package in ("grpc", "google.protobuf", "cryptography"):
            import_module(package)
