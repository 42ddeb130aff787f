"""Judges the differences of a step: which rounding explains, which calls inherit an error, and which is its origin."""
