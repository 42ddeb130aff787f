"""Facades of five older systems: their functions and their files, with numscope's capture behind them.

Each name is a package of its own; a script from that system's document runs after its import line is changed.
`live.py` is what they share: the capture engine, with a listener in the place of the run directory.
"""
