"""Names of millwheel's own tables, which no sink table may have.  Never here: anything that imports SQL."""

from __future__ import annotations

from typing import Final

RESERVED_NAMES: Final = frozenset(
    {
        "meta",
        "migration",
        "name",
        "interval",
        "ownership",
        "standstill",
        "suspicion",
        "checkpoint_log",
        "key_state",
        "hold",
        "timer",
        "production",
        "delivered",
        "delivered_frontier",
        "opaque_bucket",
        "opaque_id",
        "quarantine",
        "redrive",
        "watermark",
        "declared_epoch",
        "source",
        "source_sign",
        "cluster",
        "cluster_leader",
        "cluster_member",
        "lease",
        "interval_owner",
        "source_owner",
        "map_order",
        "hot_key",
        "sequencer",
        "interval_number",
        "incarnation",
    }
)
"""Tables and sequences of the store."""
