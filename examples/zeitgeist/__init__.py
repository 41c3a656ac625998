"""Zeitgeist: finds spikes and dips in a stream of page requests, per page and for the whole site."""
