"""What must always be true: every call of a store against what is durable, and the end of a run against its beginning."""
