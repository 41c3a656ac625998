"""The heart: one interval of keys as a state machine, its alphabet, and the order of things within it."""
