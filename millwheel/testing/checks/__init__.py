"""Checks of the invariants: every call of a store against what is durable, and the end of a run."""
