"""One partition of a source as a state machine, the partitions of a source together, and when they are read."""
