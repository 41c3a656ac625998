"""Of the releases of a key, the last one says where in the log it is free."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.ids import Seq, Sequencer
from millwheel_storage.releases import releases
from tests.unit.storage.samples import image

PLACES = [(Sequencer(3), Seq(9)), (Sequencer(4), Seq(1)), (Sequencer(4), Seq(2))]


def test_the_last_release_of_a_key_counts() -> None:
    images = [msgspec.structs.replace(image([]), released=keys) for keys in (["a", "b"], [], ["a"])]
    assert releases(images, PLACES) == {"a": (4, 2), "b": (3, 9)}


def test_each_image_has_a_place() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        releases([image([])], PLACES)
