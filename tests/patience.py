"""How long tests of real processes wait: for a machine that is busy, or that gives its time to others for seconds.

Nothing here slows a test that passes: waits end when what they wait for is there.  Only a lease that a dead process has
left is waited for to its end.
"""

from __future__ import annotations

from typing import Final

LEASE_S: Final = 6.0
"""Of a cluster in a test, unless the test is about leases.  With the shortest one allowed, 2.5 s, one stall of
a busy machine ended three healthy processes at once."""

WAIT_S: Final = 180.0
"""For what must come."""
