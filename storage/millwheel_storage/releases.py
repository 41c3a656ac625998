"""Keys that leave quarantine, and where the log says so.

Lives here: the place of a release, for both stores.  Never here: the merge of images (`fold`).  Invariant: a request to
redrive is answered by a release that comes behind the end that the log had when it was made, and by no earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millwheel.bundles import Checkpoint
from millwheel.ids import Seq, Sequencer

LogPlace = tuple[Sequencer, Seq]
"""Where a checkpoint stands in the log of its interval, over all owners."""

Releases = Mapping[str, LogPlace]
"""Keys that checkpoints release, and where the last one does."""


def releases(images: Iterable[Checkpoint], places: Iterable[LogPlace]) -> Releases:
    """What `images`, which stand at these places of a log, release."""
    return {key: place for image, place in zip(images, places, strict=True) for key in image.released}
