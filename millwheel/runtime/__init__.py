"""The asyncio shell: it performs what hosts ask for, with a real store, real sources and user code."""
