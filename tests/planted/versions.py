"""Bugs between two versions of a pipeline."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.host.routes import Routes
from millwheel.ids import Sequencer
from tests.planted import Patches, mutant, only


@mutant
def left_out_retired() -> Patches:
    """Ids of a source that is left out of one run are collected: it sends the rows again when it is back."""
    original = Routes.expect_partitions

    def expect_partitions(self: Routes, unfinished: Any) -> None:
        original(self, [(source, position) for source, position in unfinished if source in self._graph.sources])

    return {(Routes, "expect_partitions"): expect_partitions}


@mutant
def left_out_not_waited_for() -> Patches:
    """The watermark passes a source that is left out of one run."""

    def senders(self: Routes) -> Any:
        return {name: self._graph.bounds(name) for name in self._graph.computations}

    return {(Routes, "bounds"): senders}


@mutant
def outputs_are_routes() -> Patches:
    """What is durable on a stream that the new version of a computation does not list is taken for delivered."""
    original = Routes.config

    def config(self: Routes, row: Any, sequencer: Sequencer) -> Any:
        made = original(self, row, sequencer)
        assert made.outputs is not None
        return msgspec.structs.replace(made, routes={number: made.routes[number] for number in made.outputs})

    return {(Routes, "config"): config}


@only("tests/unit/host/test_routes.py")
def unsettled_not_waited_for() -> Patches:
    """The watermark passes what an earlier version of a computation has sent, and its new version does not list."""
    return {(Routes, "unsettled"): lambda self, config, recovered: set()}
