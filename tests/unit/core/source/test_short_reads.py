"""When a source partition is read again at once after it gave less than it was asked for."""

from __future__ import annotations

import pytest

from millwheel.core.source.short_reads import ShortReads
from millwheel.limits import PROBE_READS

LIMIT = 100


def play(tail: ShortReads, left: list[int], reads: int) -> tuple[int, int]:
    """Read from a source that has `left` pieces of rows: (rows read, how many reads were followed by a rest)."""
    rows = rests = 0
    for _ in range(reads):
        piece = min(left.pop(0), LIMIT) if left else 0
        rows += piece
        rests += tail.waits(LIMIT, piece)
    return rows, rests


def test_a_source_in_small_pieces_is_read_without_a_rest() -> None:
    assert play(ShortReads(), [3] * 1_000, 1_000) == (3_000, 0)


def test_a_source_that_gives_all_it_has_rests_after_each_read_but_the_probes() -> None:
    tail = ShortReads()
    rests = looks = 0
    for _ in range(10 * PROBE_READS):
        waits = tail.waits(LIMIT, 2)  # what came since the last read
        rests += waits
        while not waits:
            looks += 1
            waits = tail.waits(LIMIT, 0) or True
    assert looks == 11  # the first one, and every sixteenth
    assert rests == 10 * PROBE_READS - looks


@pytest.mark.parametrize("backlog", [50, 500])
def test_a_source_that_has_more_again_is_noticed_by_a_probe(backlog: int) -> None:
    tail = ShortReads()
    play(tail, [5, 0] * 20, 40)
    _, rests = play(tail, [1] * backlog, backlog)
    assert rests < PROBE_READS


def test_a_full_read_is_no_reason_to_rest() -> None:
    tail = ShortReads()
    play(tail, [5, 0] * 20, 40)
    assert not tail.waits(LIMIT, LIMIT)


def test_a_source_that_had_nothing_at_first_is_not_dry_because_of_that() -> None:
    """Its first rows are the begin of a piece as likely as all that it has."""
    assert play(ShortReads(), [0, 3, 3], 3) == (6, 0)
