"""Measurements against stated targets: `python -m benchmarks [NAME]` writes `build/bench/<name>.json` and a plot."""
