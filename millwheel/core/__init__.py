"""The sans-IO heart: events in, effects out.  No clock, no I/O, no randomness, no threads may enter."""
