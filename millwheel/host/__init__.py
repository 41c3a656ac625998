"""One process of the system as a state machine without I/O: events in, effects out.

Lives here: everything that a process decides.  The asyncio shell (`millwheel.runtime`) and the simulator
(`millwheel.testing`) share it.  Never here: a clock, random numbers, threads, sockets, a database, user code.
"""
