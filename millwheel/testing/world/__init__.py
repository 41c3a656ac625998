"""The simulated process: a kernel of virtual time, the way to the store and the way of messages, under faults."""
