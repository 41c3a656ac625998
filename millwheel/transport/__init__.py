"""Channels between hosts, by the protocol `millwheel.ports.Transport`.  Nothing is imported here."""
