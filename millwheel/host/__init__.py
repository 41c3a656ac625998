"""One process of the system as a state machine without I/O: events in, effects out.

Lives here: everything that a process decides, once, for the asyncio shell (`millwheel.runtime`) and for the simulator
(`millwheel.testing`).  Never here: a clock, chance, threads, sockets, a database, user code.
"""
