"""Align, measure, judge: which calls belong together, how far apart they are, and what that means."""
