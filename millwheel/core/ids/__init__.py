"""Which records and keys were seen before: ids of our own, ids that outside clients chose, and filters before the store."""
