"""Verify: each call's own error, by computing a sample of its output again in float64 from the very inputs it got."""
