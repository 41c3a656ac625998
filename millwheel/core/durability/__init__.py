"""What is committed and what not yet: checkpoints, invocations on their way to the store, and the log that is not folded."""
