"""Of the releases of a key, the last one says where in the log it is free."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.bundles import QuarantineEntry
from millwheel.ids import ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel_storage.releases import releases
from tests.unit.storage.samples import image

PLACES = [(Sequencer(3), Seq(9)), (Sequencer(4), Seq(1)), (Sequencer(4), Seq(2))]


def test_of_a_key_that_has_failed_again_the_last_release_counts() -> None:
    images = [
        msgspec.structs.replace(image([]), released=released, quarantined=[element(key) for key in failed])
        for released, failed in ((["a", "b"], ["a"]), ([], ["b"]), (["a"], ["a"]))
    ]
    assert releases(images, PLACES) == {"a": (4, 2), "b": (3, 9)}


def test_a_key_that_has_not_answers_whatever_was_asked_for_before_the_end() -> None:
    """Under snapshots its release is in the log before anybody sees it: what was asked for in between stayed for ever."""
    images = [msgspec.structs.replace(image([]), released=keys) for keys in (["a", "b"], [], ["a"])]
    assert releases(images, PLACES) == {"a": (4, 3), "b": (4, 3)}


def element(key: str) -> QuarantineEntry:
    return QuarantineEntry(key, SubscriptionId(0), ProducerId(1), SequenceNumber(0), b"", 0, "", "", "it failed")


def test_each_image_has_a_place() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        releases([image([])], PLACES)
