"""Savepoints of a pipeline: what it has stored at one moment, kept under a name.

A savepoint is a copy that Postgres makes in a schema of its own.  It has everything that the pipeline has stored: state,
timers, positions of sources, delivered ids, what waits in quarantine, rows of sink tables and published records.
"""

from __future__ import annotations

from pathlib import Path

from millwheel.api.pipeline import Pipeline
from millwheel.launch import DEFAULT_DATA, checked_pipeline, open_store
from millwheel_storage.postgres.copies import Savepoint, Savepoints

__all__ = ["Savepoint", "create", "drop", "found", "restore"]


def create(pipeline: Pipeline, name: str, store: str | None = None, data: str | Path = DEFAULT_DATA) -> Savepoint:
    """Make a savepoint, whether the pipeline runs or not.  `StoreError` for a name that is taken, or one that never ran."""
    pipeline = checked_pipeline(pipeline, "a savepoint")
    with open_store(store, data, create=False) as url:
        return Savepoints(url, pipeline.name).create(name)


def found(pipeline: Pipeline, store: str | None = None, data: str | Path = DEFAULT_DATA) -> list[Savepoint]:
    """The savepoints of the pipeline, by name."""
    pipeline = checked_pipeline(pipeline, "a savepoint")
    with open_store(store, data, create=False) as url:
        return Savepoints(url, pipeline.name).found()


def restore(pipeline: Pipeline, name: str, store: str | None = None, data: str | Path = DEFAULT_DATA) -> Savepoint:
    """Put a savepoint back in the place of what is stored.  The pipeline must not run.

    The next run goes on from there, and reads its sources from the positions of that moment.
    """
    pipeline = checked_pipeline(pipeline, "a savepoint")
    with open_store(store, data, create=False) as url:
        return Savepoints(url, pipeline.name).restore(name)


def drop(pipeline: Pipeline, name: str, store: str | None = None, data: str | Path = DEFAULT_DATA) -> None:
    """Remove a savepoint."""
    pipeline = checked_pipeline(pipeline, "a savepoint")
    with open_store(store, data, create=False) as url:
        Savepoints(url, pipeline.name).drop(name)
