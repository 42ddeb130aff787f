"""Recorded calls and modules, run again in native precision, float32 and float64."""
