"""The watched store of a cluster answers whatever processes ask a store."""

from __future__ import annotations

import inspect

from millwheel.ports import ClusterStore
from millwheel.testing.checks.shared import SharedWatchedStore


def test_the_watched_store_has_every_method_of_a_cluster_store() -> None:
    asked = {name for name, _ in inspect.getmembers(ClusterStore, inspect.isfunction) if not name.startswith("_")}
    assert {name for name in asked if not hasattr(SharedWatchedStore, name)} == set()
