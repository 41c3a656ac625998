"""Drivers: perform the effects of sans-IO cores against a real store, real sources and user code."""
