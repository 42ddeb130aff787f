"""Benchmarks: ratios against the plain step and against msprobe, in one run."""
