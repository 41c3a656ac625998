"""Zeitgeist's pipeline on search queries instead of page requests."""
