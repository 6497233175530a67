"""Measurements beside peers, each a script of its own; `python -m benchmarks gpu` makes those of a GPU."""
