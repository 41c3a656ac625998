"""Keys that leave quarantine, and where the log says so.

Lives here: the place of a release, for both stores.  Never here: the merge of images (`fold`).  Invariant: a request to
redrive is answered by a release that comes behind the end that the log had when it was made, or by an earlier one after which
the key had not failed again when it was made.
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
    """What `images`, which stand at these places of a log, release.

    A key that has not failed again answers also what was asked for after its release and before the end of the images: under
    snapshots the log has the release before anybody sees it, and the quarantine until then.
    """
    found: dict[str, LogPlace] = {}
    gone: dict[str, None] = {}
    end: LogPlace = (Sequencer(0), Seq(0))
    for image, end in zip(images, places, strict=True):
        found.update(dict.fromkeys(image.released, end))
        gone.update(dict.fromkeys(image.released))
        for entry in image.quarantined:
            gone.pop(entry.key, None)
    behind = (end[0], Seq(end[1] + 1))
    return found | dict.fromkeys(gone, behind)
