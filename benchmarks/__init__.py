"""Comparisons that are run by hand: `python -m benchmarks.loader`. README.md has the rules."""
